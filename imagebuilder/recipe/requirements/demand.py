"""A demand, which is one requirement of a file, and the list of all demands of one file."""

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
WHEEL_FOLDER = "a folder that `wheel_folders:` in a file for --site names"
NAME_A_VERSION = (
    f"write a version instead: a lock names no URL or path (put your own wheel into {WHEEL_FOLDER})"
)


class Wrong(Exception):
    """A value of a requirement file is wrong, or the rest of the file cannot be read."""

    def __init__(self, place: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.problem = Problem(message=message, where=place, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A requirement that applies to the platform: its marker was evaluated and removed.

    Attributes:
        requirement: in normal form: `numpy[extra]<3,>=2`.
        place: file and line, for messages.
        constraint: whether it only limits the version of a package, and does not install it.
        hashes: the sha256 of each allowed file; empty if every file is allowed.

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
        """The version, if the requirement allows only one; else None."""
        return exact(self.specifier)


Found: TypeAlias = Demand | Problem


@dataclass(frozen=True, kw_only=True)
class FileDemands:
    """What one entry of a recipe's `requirements:` asks for on one platform.

    Attributes:
        file: as the recipe names it.
        demands: the demands for packages.
        python: the demands on Python's version.
        limits: hash of the constraints and of the allowed hashes; empty if there are none.

    """

    file: str
    demands: tuple[Demand, ...]
    python: tuple[Demand, ...] = ()
    limits: str = ""

    @classmethod
    def of(cls, file: str, demands: Iterable[Demand]) -> FileDemands:
        """Separate the demands for packages from those on Python, and hash the limits."""
        every = list(demands)
        python = tuple(demand for demand in every if demand.name == PYTHON)
        packages = tuple(demand for demand in every if demand.name != PYTHON)
        limits = sorted(
            {(item.requirement, item.hashes) for item in packages if item.constraint or item.hashes}
        )
        text = json.dumps(limits)
        digest = hashlib.sha256(text.encode()).hexdigest() if limits else ""
        return cls(file=file, demands=packages, python=python, limits=digest)

    @classmethod
    def recorded(cls, file: str, asked: Iterable[str], limits: str) -> FileDemands:
        """Restore a file's demands from a lock, without the file."""
        return cls(
            file=file, demands=tuple(Demand(requirement=text, place=file) for text in asked), limits=limits
        )

    @property
    def asked(self) -> tuple[str, ...]:
        """The requirements without the constraints, sorted, each once."""
        return tuple(sorted({demand.requirement for demand in self.demands if not demand.constraint}))


def exact(specifier: SpecifierSet) -> Version | None:
    """Return the version if a specifier allows only one, else None."""
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
    """Read one requirement in pip's syntax; return None if its marker excludes the image.

    Raises:
        Wrong: it is invalid, or names a URL or a path instead of a version.

    """
    try:
        parsed = Requirement(text if len(text) <= _LONGEST else "")
    except (InvalidRequirement, RecursionError):
        if _LIKE_A_PLACE.search(text):
            raise Wrong(place, f"a package {BY_PLACE}", NAME_A_VERSION) from None
        hint = 'write it as in "mpi4py==4.1.1"'
        raise Wrong(place, f"`{printable(text)}` is not a requirement", hint) from None
    if parsed.url:
        raise Wrong(place, f"`{parsed.name}` {BY_PLACE}", NAME_A_VERSION)
    if constraint and parsed.extras:
        hint = "write the extras where the package is asked for"
        raise Wrong(place, f"the constraint on `{parsed.name}` has extras", hint)
    if parsed.marker is not None and not counts(parsed.marker, place, environment):
        return None
    if hashes and exact(parsed.specifier) is None:
        hint = f"write the version: {parsed.name}==VERSION"
        raise Wrong(place, f"`{printable(text)}` has hashes, but not one exact version", hint)
    return Demand(
        requirement=_normal(parsed.name, parsed.extras, parsed.specifier),
        place=place,
        constraint=constraint,
        hashes=tuple(sorted(hashes)),
    )


def pinned(name: str, version: str, place: str, hashes: tuple[str, ...]) -> Demand:
    """Return the demand for one exact version, as lock files give it.

    Raises:
        Wrong: the name or the version is invalid.

    """
    try:
        return Demand(
            requirement=_normal(Requirement(name).name, (), SpecifierSet(f"=={Version(version)}")),
            place=place,
            hashes=tuple(sorted(hashes)),
        )
    except (InvalidRequirement, InvalidVersion):
        shown = printable(f"{name} {version}")
        raise Wrong(
            place, f"`{shown}` is not a package name and a version", "lock the project again"
        ) from None


def of_python(text: object, place: str) -> Demand | None:
    """Read `requires-python`; return None if the file does not have it.

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
    """Return whether a marker is true for the image.

    Raises:
        Wrong: the marker is invalid, or compares values that cannot be compared.

    """
    try:
        parsed = Marker(marker) if isinstance(marker, str) else marker
        return parsed.evaluate({**environment, "extra": ""})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
        shown = printable(str(marker))
        raise Wrong(
            place, f"the marker `{shown}` cannot be evaluated", "see PEP 508 for what can be compared"
        ) from None


def sha256(text: str, place: str) -> str:
    """Return the hex digits of `sha256:...`.

    Raises:
        Wrong: it is of another algorithm, or malformed.

    """
    match = _SHA256.fullmatch(text)
    if not match:
        algorithm = printable(text.partition(":")[0])
        if algorithm == "sha256":
            raise Wrong(place, f"`{printable(text)}` is not a hash", "a sha256 has 64 hexadecimal digits")
        raise Wrong(
            place,
            f"the hash algorithm `{algorithm}` is not supported",
            "write sha256: and 64 hexadecimal digits",
        )
    return match[1]


def is_normal(text: str) -> bool:
    """Return whether a text is a requirement in the normal form of `Demand`, without marker and URL."""
    try:
        parsed = Requirement(text)
    except (InvalidRequirement, RecursionError):
        return False
    plain = parsed.marker is None and parsed.url is None
    return plain and text == _normal(parsed.name, parsed.extras, parsed.specifier)


def _normal(name: str, extras: Iterable[str], specifier: SpecifierSet) -> str:
    listed = ",".join(sorted(map(canonicalize_name, extras)))
    return canonicalize_name(name) + (f"[{listed}]" if listed else "") + str(specifier)
