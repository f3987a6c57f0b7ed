"""Where a distribution's archive is: the site's mirrors, or mmdebstrap's own default."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from imagebuilder.debian import sources, suites
from imagebuilder.errors import EnvironmentFault
from imagebuilder.host.site import Site
from imagebuilder.host.tools import HOST, Tools, choose_tools


def of_site(site: Site, distribution: str, suite: str, architecture: str) -> suites.Mirrors:
    """Take the site's mirrors, and the distribution's own where the site names none."""
    main, security = site.apt_mirror, site.apt_security_mirror
    if architecture in suites.facts(distribution, suite).ports:
        main = security = site.apt_ports_mirror
    if not (main and security):
        own = default(distribution, suite, architecture, choose_tools(site))
        main, security = main or own.main, security or own.security
    return suites.Mirrors(main=main.rstrip("/"), security=security.rstrip("/"))


@cache
def default(
    distribution: str, suite: str, architecture: str = "amd64", tools: Tools = HOST
) -> suites.Mirrors:
    """Ask mmdebstrap where it would fetch a suite from: its default is the distribution's own archive.

    Ubuntu keeps architectures other than amd64 in another one.

    It writes its sources into a new root and stops there: nothing is fetched, no privilege is needed.

    Raises:
        EnvironmentFault: mmdebstrap is not installed, or names no archive.

    """
    suites.facts(distribution, suite)
    # The empty line after a file keeps paragraphs apart.
    hook = (
        'for f in "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*; '
        'do [ ! -f "$f" ] || { cat "$f"; echo; }; done'
    )
    with (
        tempfile.TemporaryDirectory(prefix="imagebuilder-mirrors-") as name,
        tools.open(Path(name), network=False) as sandbox,
    ):
        # As a user no mode but this one needs nothing; as root newer ones refuse it, and root's own mounts
        # nothing while there is nothing to install.
        mode = "root" if sandbox.is_root else "chrootless"
        argv = ["mmdebstrap", "--variant=custom", f"--mode={mode}", "--skip=update,cleanup,check/qemu"]
        argv.append(f"--architectures={architecture}")
        try:
            result = sandbox.run([*argv, f"--setup-hook={hook}", suite, "/dev/null"], timeout=60, check=False)
        except EnvironmentFault as error:
            raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("mmdebstrap")) from error
    # Hooks write where mmdebstrap's own messages go.
    said = result.stdout + result.stderr
    places = {
        name: source.uri
        for source in reversed([*sources.one_line(said), *sources.deb822(said)])
        for name in source.suites
    }
    if suite not in places:
        reason = "\n".join(line for line in result.stderr.splitlines() if line.startswith("E: "))
        raise EnvironmentFault(
            f"mmdebstrap names no archive of {distribution} {suite}" + (f":\n{reason}" if reason else ""),
            hint="name one in the site file: `apt_mirror:`",
        )
    return suites.Mirrors(main=places[suite], security=places.get(f"{suite}-security", places[suite]))
