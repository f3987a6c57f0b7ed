"""URLs of a distribution's archive: the site's mirrors, or mmdebstrap's own default."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from imagebuilder.debian import sources, suites
from imagebuilder.errors import EnvironmentFault
from imagebuilder.host.site import Site
from imagebuilder.host.tools import HOST, Tools, choose_tools


def of_site(site: Site, distribution: str, suite: str, architecture: str) -> suites.Mirrors:
    """Return the site's mirrors, or the distribution's own if the site names none."""
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
    """Ask mmdebstrap for its default mirrors of a suite: they are the distribution's own archive.

    The architecture matters because Ubuntu has a separate archive for all but amd64. mmdebstrap writes its
    sources into a new root and stops there: it fetches nothing and needs no privilege.

    Raises:
        EnvironmentFault: mmdebstrap is not installed, or has no default for this suite.

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
        # A user needs no privilege only in the mode `chrootless`. Newer releases refuse it to root; the mode
        # `root` mounts nothing as long as nothing gets installed.
        mode = "root" if sandbox.is_root else "chrootless"
        argv = ["mmdebstrap", "--variant=custom", f"--mode={mode}", "--skip=update,cleanup,check/qemu"]
        argv.append(f"--architectures={architecture}")
        try:
            result = sandbox.run([*argv, f"--setup-hook={hook}", suite, "/dev/null"], timeout=60, check=False)
        except EnvironmentFault as error:
            raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("mmdebstrap")) from error
    # The hook's output may be on either stream.
    said = result.stdout + result.stderr
    places = {
        name: source.uri
        for source in reversed([*sources.one_line(said), *sources.deb822(said)])
        for name in source.suites
    }
    if suite not in places:
        reason = "\n".join(line for line in result.stderr.splitlines() if line.startswith("E: "))
        raise EnvironmentFault(
            f"mmdebstrap has no default mirror for {distribution} {suite}"
            + (f":\n{reason}" if reason else ""),
            hint="name one in the site file: `apt_mirror:`",
        )
    return suites.Mirrors(main=places[suite], security=places.get(f"{suite}-security", places[suite]))
