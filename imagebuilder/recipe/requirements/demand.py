"""One thing that a requirement file asks for, and all that one file asks for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import Problem

PYTHON = "python"  # a demand on Python itself, `requires-python`, which is never a package
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_LONGEST = 2_000
_LIKE_A_PLACE = re.compile(r"(?i)://|^git\+|^[./~]|^file:|[\\/]|\.(?:whl|zip|tar\.gz)$")
BY_PLACE = "is asked for by URL or path"
_NAME_A_VERSION = (
    "name a version: a lock holds bytes, not places (a wheel of your own goes into a wheel folder, "
    "see docs/how-to/site.md)"
)


class Wrong(Exception):
    """What makes the rest of a file unreadable, or one value of it."""

    def __init__(self, place: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.problem = Problem(message=message, where=place, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A requirement without a marker, which already counts on the platform.

    Attributes:
        requirement: in normal form: `numpy[extra]<3,>=2`.
        place: file and line.
        constraint: it limits the version of a package that something else asks for.
        hashes: the sha256 of each file that it allows; empty for any.

    """

    requirement: str
    place: str
    constraint: bool = False
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> NormalizedName:
        return canonicalize_name(Requirement(self.requirement).name)

    @property
    def specifier(self) -> SpecifierSet:
        return Requirement(self.requirement).specifier

    @property
    def exact(self) -> Version | None:
        """The version, where the requirement allows one alone."""
        return exact(self.specifier)


Found: TypeAlias = Demand | Problem


@dataclass(frozen=True, kw_only=True)
class FileDemands:
    """What one entry of a recipe's `requirements:` asks for on one platform.

    Attributes:
        file: as the recipe names it.
        demands: those on packages.
        python: those on Python.
        limits: hash of the constraints and of the allowed hashes; empty where there are none.

    """

    file: str
    demands: tuple[Demand, ...]
    python: tuple[Demand, ...] = ()
    limits: str = ""

    @classmethod
    def of(cls, file: str, demands: Iterable[Demand]) -> FileDemands:
        """Sort out what a file asks for."""
        found = list(demands)
        python = tuple(demand for demand in found if demand.name == PYTHON)
        packages = tuple(demand for demand in found if demand.name != PYTHON)
        limits = sorted(
            {(item.requirement, item.hashes) for item in packages if item.constraint or item.hashes}
        )
        text = json.dumps(limits)
        digest = hashlib.sha256(text.encode()).hexdigest() if limits else ""
        return cls(file=file, demands=packages, python=python, limits=digest)

    @classmethod
    def recorded(cls, file: str, asked: Iterable[str], limits: str) -> FileDemands:
        """Take from a lock what a file asked for, where the file itself is not at hand."""
        return cls(
            file=file, demands=tuple(Demand(requirement=text, place=file) for text in asked), limits=limits
        )

    @property
    def asked(self) -> tuple[str, ...]:
        """The requirements that install something, sorted, each once."""
        return tuple(sorted({demand.requirement for demand in self.demands if not demand.constraint}))


def exact(specifier: SpecifierSet) -> Version | None:
    """Return the version that a specifier allows, if it allows one alone."""
    for part in specifier:
        if part.operator == "==" and not part.version.endswith(".*"):
            return Version(part.version)
    return None


def demand(
    text: str,
    place: str,
    environment: Mapping[str, str],
    *,
    constraint: bool = False,
    hashes: tuple[str, ...] = (),
) -> Demand | None:
    """Read one requirement as pip writes it; None where its marker says that the image is not meant.

    Raises:
        Wrong: it is not one, or names a place instead of a version.

    """
    try:
        parsed = Requirement(text if len(text) <= _LONGEST else "")
    except (InvalidRequirement, RecursionError):
        if _LIKE_A_PLACE.search(text):
            raise Wrong(place, f"a package {BY_PLACE}", _NAME_A_VERSION) from None
        hint = 'write it as in "mpi4py==4.1.1"'
        raise Wrong(place, f"`{printable(text)}` is not a requirement", hint) from None
    if parsed.url:
        raise Wrong(place, f"`{parsed.name}` {BY_PLACE}", _NAME_A_VERSION)
    if constraint and parsed.extras:
        hint = "write the extras where the package is asked for"
        raise Wrong(place, f"the constraint on `{parsed.name}` has extras", hint)
    if parsed.marker is not None and not counts(parsed.marker, place, environment):
        return None
    if hashes and exact(parsed.specifier) is None:
        hint = f"write the version: {parsed.name}==VERSION"
        raise Wrong(place, f"`{printable(text)}` has hashes, and leaves its version open", hint)
    return Demand(
        requirement=_normal(parsed.name, parsed.extras, parsed.specifier),
        place=place,
        constraint=constraint,
        hashes=tuple(sorted(hashes)),
    )


def pinned(name: str, version: str, place: str, hashes: tuple[str, ...]) -> Demand:
    """Make the demand for one exact version, as lock files have it.

    Raises:
        Wrong: it is not a version or not a name.

    """
    try:
        return Demand(
            requirement=_normal(Requirement(name).name, (), SpecifierSet(f"=={Version(version)}")),
            place=place,
            hashes=tuple(sorted(hashes)),
        )
    except (InvalidRequirement, InvalidVersion):
        shown = printable(f"{name} {version}")
        raise Wrong(place, f"`{shown}` is not a package and its version", "lock the project again") from None


def of_python(text: object, place: str) -> Demand | None:
    """Read `requires-python`; None where a file does not have it.

    Raises:
        Wrong: it is not a range of versions.

    """
    if text is None:
        return None
    try:
        specifier = SpecifierSet(str(text))
    except InvalidSpecifier:
        message = f"`{printable(str(text))}` is not a range of versions"
        raise Wrong(place, message, 'write it as in ">=3.11"') from None
    return Demand(requirement=f"{PYTHON}{specifier}", place=place)


def counts(marker: Marker | str, place: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a marker holds in the image.

    Raises:
        Wrong: it is not a marker, or compares what cannot be compared.

    """
    try:
        parsed = Marker(marker) if isinstance(marker, str) else marker
        return parsed.evaluate({**environment, "extra": ""})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
        shown = printable(str(marker))
        raise Wrong(
            place, f"the marker `{shown}` has no meaning", "see PEP 508 for what can be compared"
        ) from None


def sha256(text: str, place: str) -> str:
    """Take the hex digits of `sha256:...`.

    Raises:
        Wrong: it is another algorithm, or no hash.

    """
    match = _SHA256.fullmatch(text)
    if not match:
        algorithm = printable(text.partition(":")[0])
        if algorithm == "sha256":
            raise Wrong(place, f"`{printable(text)}` is not a hash", "a sha256 has 64 hexadecimal digits")
        raise Wrong(
            place, f"a hash by `{algorithm}` is not compared", "write sha256: and 64 hexadecimal digits"
        )
    return match[1]


def is_normal(text: str) -> bool:
    """Tell whether a text is a requirement as `Demand` has it: no marker, no URL, one way of writing."""
    try:
        parsed = Requirement(text)
    except (InvalidRequirement, RecursionError):
        return False
    plain = parsed.marker is None and parsed.url is None
    return plain and text == _normal(parsed.name, parsed.extras, parsed.specifier)


def _normal(name: str, extras: Iterable[str], specifier: SpecifierSet) -> str:
    listed = ",".join(sorted(map(canonicalize_name, extras)))
    return canonicalize_name(name) + (f"[{listed}]" if listed else "") + str(specifier)
