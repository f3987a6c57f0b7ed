"""Compare requirement files with the recipe's pins, without asking an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from imagebuilder.errors import ConflictError, Problem
from imagebuilder.lock.model import Lock
from imagebuilder.resolve.request import Pinned, Request, family


def require(requests: Iterable[Request]) -> None:
    """Refuse requirement files that name another exact version than the recipe pins.

    The solver checks ranges, and what packages require of each other.

    Raises:
        ConflictError: lists every such requirement, with its file and line and the recipe's.

    """
    problems = dict.fromkeys(problem for wanted in requests for problem in _problems(wanted))
    if problems:
        raise ConflictError.of(tuple(problems))


def notes(wanted: Request, lock: Lock) -> Iterator[str]:
    """Yield a note for each component that a requirement file brings in but the recipe does not pin."""
    versions = {canonicalize_name(wheel.name): wheel.version for wheel in lock.wheels}
    demands = {
        demand.name: demand for file in wanted.files for demand in file.demands if not demand.constraint
    }
    for name, component in wanted.selection.components.items():
        if name in wanted.selection.by_name:
            continue
        named = map(canonicalize_name, sorted(family(component)))
        for package in (package for package in named if package in demands and package in versions):
            demand, version = demands[package], versions[package].partition("+")[0]
            yield (
                f"`{demand.requirement}` ({demand.place}) brings in {name}, which is not pinned: "
                f'write `{name}: "{version}"` under `pins:`, so that the smoke test checks it'
            )


def _problems(wanted: Request) -> Iterator[Problem]:
    pins = (*wanted.wheel_pins, *(linked.wheel for linked in wanted.linked))
    free = {canonicalize_name(pin.package): pin for pin in pins if pin not in wanted.forced}
    compiled = {part.built.sdist: part.component.name for part in wanted.selection.parts if part.built}
    for demand in (demand for file in wanted.files for demand in file.demands):
        pin, version = free.get(demand.name), demand.exact
        if pin and version and not _specifier(pin).contains(version, prereleases=True):
            yield Problem(
                message=f"`{demand.requirement}` clashes: {wanted.places.of('pins', pin.pin)} asks for "
                f"{pin.requirement}",
                where=demand.place,
                hint=f'set {pin.pin}: "{version.public}" in the recipe, or change the version in the file, '
                f"or force the pin with `override: [{pin.pin}]`",
            )
        if demand.name in compiled and not demand.constraint:
            name = compiled[demand.name]
            yield Problem(
                message=f"`{demand.requirement}` would be installed twice: as a wheel, and compiled by "
                f"{wanted.places.of('build')}",
                where=demand.place,
                hint=f"leave it out of the file, or `{name}` out of `build:`",
            )


def _specifier(pin: Pinned) -> SpecifierSet:
    return Requirement(pin.requirement).specifier
