"""Suites of a distribution: their facts (suites.yaml), their mirrors, and their apt sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict, Table
from imagebuilder.errors import EnvironmentFault, InputError

INSTALL_HINT = "install it: `apt-get install {}`, or `imagebuilder doctor --fix`"
_FILE = "suites.yaml"


class Suite(Strict):
    """Which other archives belong to a suite."""

    updates: bool
    security: bool
    has: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Components and versions that this release keeps."),
    ]


class DistributionFacts(Strict):
    """Facts that hold for every suite of a distribution."""

    keyring: Annotated[str, Field(description="The archive's keys: the same path on a host and in an image.")]
    keyring_package: str
    components: tuple[str, ...]
    packages: Annotated[
        tuple[str, ...], Field(description="Packages of every image, besides essential ones.")
    ]
    security_pool: Annotated[str, Field(description="Prefix of pool paths in the security archive.")]
    paths: Annotated[
        tuple[str, str], Field(description="Folders of the archive and of its security updates.")
    ]
    ports: Annotated[
        tuple[str, ...],
        Field(description="Architectures in a separate archive, which mirrors of the main one lack."),
    ] = ()
    suites: dict[str, Suite]


class Mirrors(Strict):
    """URLs of the archive and of its security updates, without a slash at the end."""

    main: str
    security: str


def _on_this_host(path: Path) -> bool:
    return path.is_file()


def facts(distribution: str, suite: str, where: str = "") -> DistributionFacts:
    """Return the facts of a distribution that has this suite.

    Raises:
        InputError: the distribution or the suite is unknown.

    """
    known = _facts()
    where = where or f"base: {distribution}:{suite}"
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


def known() -> dict[str, DistributionFacts]:
    """Return every distribution that can be bootstrapped, with its facts."""
    return _facts()


def keyring(distribution: str, suite: str, has: Callable[[Path], bool] = _on_this_host) -> Path:
    """Return the path of the distribution's archive keys.

    Args:
        distribution: the distribution.
        suite: one of its suites.
        has: returns whether a file exists where apt runs.

    Raises:
        EnvironmentFault: the keys are not installed there.

    """
    known = facts(distribution, suite)
    path = Path(known.keyring)
    if not has(path):
        raise EnvironmentFault(
            f"the keys of {distribution}'s archive are not where apt runs ({path})",
            hint=INSTALL_HINT.format(known.keyring_package),
        )
    return path


def releases(distribution: str, suite: str, mirrors: Mirrors) -> tuple[tuple[str, str], ...]:
    """Return the suite, its updates and its security updates, each with its Release file's folder."""
    pockets = facts(distribution, suite).suites[suite]
    names = (suite, *([f"{suite}-updates"] if pockets.updates else []))
    found = [(name, f"{mirrors.main}/dists/{name}/") for name in names]
    if pockets.security:
        found.append((f"{suite}-security", f"{mirrors.security}/dists/{suite}-security/"))
    return tuple(found)


def sources(
    distribution: str, suite: str, mirrors: Mirrors, *, types: str = "deb", sections: Sequence[str] = ()
) -> str:
    """Write apt's sources of a suite, its updates and its security updates, as deb822 (sources.list(5)).

    Args:
        distribution: as in `facts`.
        suite: as in `facts`.
        mirrors: the archives' URLs.
        types: `deb`, or `deb-src` for source packages.
        sections: more sections of the archive, such as `non-free`.

    """
    known = facts(distribution, suite)
    pockets = known.suites[suite]
    blocks = [(mirrors.main, f"{suite} {suite}-updates" if pockets.updates else suite)]
    if pockets.security:
        blocks.append((mirrors.security, f"{suite}-security"))
    return "\n".join(
        f"Types: {types}\nURIs: {uri}\nSuites: {names}\n"
        f"Components: {' '.join((*known.components, *sections))}\n"
        f"Signed-By: {known.keyring}\n"
        for uri, names in blocks
    )


@cache
def _facts() -> dict[str, DistributionFacts]:
    raw = resources.files("imagebuilder.debian").joinpath(_FILE).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/{_FILE}"), Table[DistributionFacts]).root
