"""Suites of a distribution: their facts (suites.yaml), their mirrors, and how apt is told about them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, RootModel

from imagebuilder import yamlfile
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.toolbox import HOST, Toolbox

INSTALL_HINT = "install it: `apt-get install {}`, or `imagebuilder doctor --fix`"
_FILE = "suites.yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Suite(_Strict):
    """What apt gets besides the suite itself."""

    updates: bool
    security: bool


class Distribution(_Strict):
    """Facts that hold for every suite of a distribution."""

    keyring: Annotated[str, Field(description="The archive's keys: the same path on a host and in an image.")]
    keyring_package: str
    components: tuple[str, ...]
    packages: Annotated[tuple[str, ...], Field(description="In every image, besides the essential ones.")]
    security_pool: Annotated[str, Field(description="How pool paths of the security archive begin.")]
    ports: Annotated[
        tuple[str, ...],
        Field(description="Architectures in an archive of their own, which mirrors of the main one lack."),
    ] = ()
    suites: dict[str, Suite]


class _Facts(RootModel[dict[str, Distribution]]):
    model_config = ConfigDict(frozen=True, strict=True)


class Mirrors(_Strict):
    """Roots of the archive and of its security updates: URLs without a slash at the end."""

    main: str
    security: str


def _on_this_host(path: Path) -> bool:
    return path.is_file()


def facts(distribution: str, suite: str) -> Distribution:
    """Look a distribution up, and make sure that the suite is one of its.

    Raises:
        InputError: it is not known here.

    """
    known = _facts()
    where = f"base: {distribution}:{suite}"
    if distribution not in known:
        raise InputError(
            f"`{distribution}` is not a distribution that can be bootstrapped",
            where=where,
            hint=yamlfile.nearest(distribution, known) or f"known: {', '.join(sorted(known))}",
        )
    suites = known[distribution].suites
    if suite not in suites:
        raise InputError(
            f"`{suite}` is not a suite of {distribution} that can be bootstrapped",
            where=where,
            hint=yamlfile.nearest(suite, suites) or f"known: {', '.join(sorted(suites))}",
        )
    return known[distribution]


def known() -> dict[str, Distribution]:
    """Name every distribution that can be bootstrapped, with its facts."""
    return _facts()


def keyring(distribution: str, suite: str, has: Callable[[Path], bool] = _on_this_host) -> Path:
    """Find the keys of the distribution's archive where apt runs.

    Args:
        distribution: of the archive.
        suite: one of its.
        has: tells whether apt sees a file.

    Raises:
        EnvironmentFault: they are not installed.

    """
    found = facts(distribution, suite)
    path = Path(found.keyring)
    if not has(path):
        raise EnvironmentFault(
            f"the keys of {distribution}'s archive are not where apt runs ({path})",
            hint=INSTALL_HINT.format(found.keyring_package),
        )
    return path


@cache
def default_mirrors(
    distribution: str, suite: str, architecture: str = "amd64", tools: Toolbox = HOST
) -> Mirrors:
    """Ask mmdebstrap where it would fetch a suite from: its default is the distribution's own archive.

    Ubuntu keeps architectures other than amd64 in another one.

    It writes its sources into a new root and stops there: nothing is fetched, no privilege is needed.

    Raises:
        EnvironmentFault: mmdebstrap is not installed, or names no archive.

    """
    facts(distribution, suite)
    hook = (
        'for f in "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*; do [ ! -f "$f" ] || cat "$f"; done'
    )
    with (
        tempfile.TemporaryDirectory(prefix="imagebuilder-mirrors-") as name,
        tools.open(Path(name), network=False) as desk,
    ):
        # As a user no mode but this one needs nothing; as root newer ones refuse it, and root's own mounts
        # nothing while there is nothing to install.
        mode = "root" if desk.is_root else "chrootless"
        argv = ["mmdebstrap", "--variant=custom", f"--mode={mode}", "--skip=update,cleanup,check/qemu"]
        argv.append(f"--architectures={architecture}")
        try:
            result = desk.run([*argv, f"--setup-hook={hook}", suite, "/dev/null"], timeout=60, check=False)
        except EnvironmentFault as error:
            raise EnvironmentFault(str(error), hint=INSTALL_HINT.format("mmdebstrap")) from error
    # Hooks write where mmdebstrap's own messages go.
    found = _parse_sources(result.stdout + result.stderr)
    if suite not in found:
        reason = "\n".join(line for line in result.stderr.splitlines() if line.startswith("E: "))
        raise EnvironmentFault(
            f"mmdebstrap names no archive of {distribution} {suite}" + (f":\n{reason}" if reason else ""),
            hint="name one in the site file: `apt_mirror:`",
        )
    return Mirrors(main=found[suite], security=found.get(f"{suite}-security", found[suite]))


def sources(
    distribution: str, suite: str, mirrors: Mirrors, *, types: str = "deb", sections: Sequence[str] = ()
) -> str:
    """Write apt's sources of a suite, its updates and its security updates, as deb822 (sources.list(5)).

    Args:
        distribution: as in `facts`.
        suite: as in `facts`.
        mirrors: where they are.
        types: `deb`, or `deb-src` for source packages.
        sections: sections of the archive besides the usual, such as `non-free`.

    """
    found = facts(distribution, suite)
    pockets = found.suites[suite]
    blocks = [(mirrors.main, f"{suite} {suite}-updates" if pockets.updates else suite)]
    if pockets.security:
        blocks.append((mirrors.security, f"{suite}-security"))
    return "\n".join(
        f"Types: {types}\nURIs: {uri}\nSuites: {names}\n"
        f"Components: {' '.join((*found.components, *sections))}\n"
        f"Signed-By: {found.keyring}\n"
        for uri, names in blocks
    )


@cache
def _facts() -> dict[str, Distribution]:
    raw = resources.files("imagebuilder").joinpath(_FILE).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/{_FILE}"), _Facts).root


def _parse_sources(text: str) -> dict[str, str]:
    """Read suite and URL from apt sources among other lines: of the one-line format, and of deb822."""
    found: dict[str, str] = {}
    uri = ""
    for line in text.splitlines():
        if one := re.fullmatch(r"deb +(?:\[[^]]*\] +)?(\S+) +(\S+) +\S.*", line):
            found.setdefault(one[2], one[1].rstrip("/"))
        elif many := re.fullmatch(r"URIs: *(\S+).*", line):
            uri = many[1].rstrip("/")
        elif uri and (many := re.fullmatch(r"Suites: *(\S.*)", line)):
            for suite in many[1].split():
                found.setdefault(suite, uri)
    return found
