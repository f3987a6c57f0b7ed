"""Explain why pins cannot be used together: who requires what, which values work, how to force a pin.

Nothing is guessed from names or tables: everything comes from the packages' own metadata, or from running the
solver again with one change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.core import yamlfile
from imagebuilder.errors import ConflictError, ImagebuilderError, Problem
from imagebuilder.resolve import wheelfile
from imagebuilder.resolve.request import LinkedDeb, Pinned, Request, family
from imagebuilder.resolve.uv import Solution, SolveRequest, Target, UnsolvableError, files, solve

if TYPE_CHECKING:
    from imagebuilder.recipe.requirements import Demand

log = logging.getLogger(__name__)

_PARALLEL = 2
# How many other values of a pin to try; and the Pythons to try when there is no wheel for the image's Python.
_STEPS = 4
_PYTHONS = tuple(f"3.{minor}" for minor in range(9, 16))
_NOT_FOUND = "was not found in"
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Party:
    """One of the recipe's requirements: a pin, or a requirement of `pip:` or of the catalog.

    Attributes:
        where: its place, for messages.
        key: its key in the recipe: `pins.nccl`, `pip[0]`.
        label: how messages call it.
        package: the distribution that it limits.
        requirement: the requirement itself.
        pin: the pin, if it is one.
        in_file: whether it stands in a requirement file; `where` and `key` are then its file and line.
        by_apt: whether it is a Debian package of a component that a framework loads from a wheel.
        advice: how to change its version if it is not a pin; `{version}` is replaced by one that works.

    """

    where: str
    key: str
    label: str
    package: str
    requirement: str
    pin: Pinned | None = None
    in_file: bool = False
    by_apt: bool = False
    advice: str = ""


def explain(request: Request, target: Target, reason: str) -> ImagebuilderError:
    """Explain why the solver found no solution.

    Args:
        request: the request.
        target: the environment that was solved for.
        reason: the solver's own explanation, used if nothing better is found.

    Returns:
        A ConflictError with every clash, for the caller to raise.

    """
    log.info("the pins of %s cannot be used together; looking for values that can", request.recipe)
    everyone = parties(request)
    forced = _forced(request)
    problems: list[Problem] = []
    able = []
    for party, version in zip(everyone, _each_alone(everyone, target), strict=True):
        if isinstance(version, UnsolvableError) and party.by_apt:
            # There need not be a wheel of this version: it can still differ from the loaded one.
            able.append((party, str(Requirement(party.requirement).specifier).strip("=.*")))
        elif isinstance(version, UnsolvableError):
            problems.append(_where_it_looked(_impossible(party, str(version), target), str(version)))
        else:
            able.append((party, version))
    kept, clashing, solution = _split([party for party, _ in able], forced, target)
    versions = dict(able)
    problems += _parallel(lambda item: _clash(item, versions[item], kept, forced, target), clashing)
    if solution:
        pins = tuple(party.pin for party in kept if party.pin)
        problems += never_loaded(replace(request, wheel_pins=pins), solution, target)
    if not problems:
        problems = [
            Problem(message=_short(reason), where=request.places.of("pins"), hint="loosen one of these")
        ]
    return ConflictError.of(problems)


def never_loaded(request: Request, solution: Solution, target: Target) -> list[Problem]:
    """Explain pins that can be installed but have no effect, because nothing loads the pinned component.

    The usual case is torch for CUDA 13 beside a pinned CUDA 12 runtime: both can be in one venv.
    """
    return [
        _idle_problem(request, loader, idle, solution, target)
        for loader, idle in idle_pins(request, solution)
    ]


def idle_pins(request: Request, solution: Solution) -> list[tuple[Pinned, tuple[Pinned, ...]]]:
    """Return each pin that should load other pinned components, with those that it does not require."""
    pins = {pin.pin: pin for pin in request.wheel_pins}
    # Pins on Debian packages count like pins on wheels: they have no effect unless the wheel is loaded.
    for linked in request.linked:
        pins.setdefault(linked.wheel.pin, linked.wheel)
    components = request.selection.components
    rows = []
    for name, loader in pins.items():
        tree = solution.tree(canonicalize_name(loader.package))
        loads = components[name].loads if name in components else ()
        idle = tuple(
            pins[other]
            for other in loads
            if other in pins and canonicalize_name(pins[other].package) not in tree
        )
        if idle:
            rows.append((loader, idle))
    return rows


def contradictions(name: str, version: str, solution: Solution, target: Target) -> tuple[str, ...]:
    """Return sentences for the packages of a solution that require another version of a package.

    Example: `torch 2.10.0 requires nvidia-nccl-cu12==2.27.5`.
    """
    askers = [(parent, solution.versions[parent]) for parent in sorted(solution.parents.get(name, ()))]
    if not askers:
        return ()
    sentences = []
    offered = files(askers, target)
    with target.site.session() as session:
        for parent, parent_version in askers:
            file = wheelfile.best(offered.get(parent, ()), target)
            demands = wheelfile.demands(wheelfile.requires(file, session), name, target) if file else ()
            sentences += [
                f"{parent} {parent_version} requires {name}{demand.specifier}"
                for demand in demands
                if not demand.specifier.contains(version, prereleases=True)
            ]
    return tuple(sentences)


def parties(request: Request) -> tuple[Party, ...]:
    """Return a request's parties. Those that load others come first: so clashes name the others."""
    components = request.selection.components
    pins = sorted(
        request.wheel_pins, key=lambda pin: pin.pin not in components or not components[pin.pin].loads
    )
    found = [
        Party(
            where=request.places.of("pins", pin.pin),
            key=f"pins.{pin.pin}",
            label=f'{pin.pin} "{pin.value}"',
            package=canonicalize_name(pin.package),
            requirement=pin.requirement,
            pin=pin,
        )
        for pin in pins
    ]
    found += (_of_package(linked, request) for linked in request.linked)
    owners = {canonicalize_name(package): component for package, component in request.owners}
    from_files = request.from_files
    for requirement in request.requirements:
        package = canonicalize_name(Requirement(requirement).name)
        path: tuple[str | int, ...] = (
            ("pip", request.pip.index(requirement))
            if requirement in request.pip
            else ("pins", owners.get(package, ""))
        )
        demand = None if requirement in request.pip else from_files.get(requirement)
        found.append(
            Party(
                where=demand.place if demand else request.places.of(*path),
                key=demand.place if demand else yamlfile.dotted_path(path),
                label=f"`{requirement}`",
                package=package,
                requirement=requirement,
                in_file=demand is not None,
            )
        )
    return (*found, *(_of_constraint(from_files[text]) for text in request.constraints))


def _of_constraint(demand: Demand) -> Party:
    return Party(
        where=demand.place,
        key=demand.place,
        label=f"the constraint `{demand.requirement}`",
        package=demand.name,
        requirement=demand.requirement,
        in_file=True,
    )


def _of_package(linked: LinkedDeb, request: Request) -> Party:
    """Return the party of a Debian package whose component a framework loads from a wheel instead."""
    pin, package = linked.wheel, linked.package
    is_pin = linked.place.startswith("pins.")
    return Party(
        where=request.place_of(linked),
        key=linked.place.removeprefix("apt: "),
        label=f'{pin.pin} "{pin.value}" (by apt: {package})' if is_pin else f"`{package}` {pin.value}",
        package=canonicalize_name(pin.package),
        requirement=pin.requirement,
        pin=pin if is_pin else None,
        by_apt=True,
        advice=""
        if is_pin
        else f"ask for {package} {{version}}, or leave it out of `apt:`; "
        f'to keep it, pin it: `{pin.pin}: "{pin.value}"`, `providers: {{{pin.pin}: apt}}`, '
        f"and force it with `override: [{pin.pin}]`",
    )


def _each_alone(everyone: Sequence[Party], target: Target) -> list[str | UnsolvableError]:
    """Ask for each party by itself; for those of requirement files, which may be hundreds, first together."""
    listed = _requirements(party for party in everyone if party.in_file)
    together = _try(listed, (), target, dependencies=False) if listed else None

    def ask(party: Party) -> str | UnsolvableError:
        return together.versions[party.package] if together and party.in_file else _alone(party, target)

    return _parallel(ask, everyone)


def _alone(party: Party, target: Target) -> str | UnsolvableError:
    try:
        query = SolveRequest(requirements=(party.requirement,), dependencies=False)
        return solve(query, target).versions[party.package]
    except UnsolvableError as error:
        return error


def _impossible(party: Party, reason: str, target: Target) -> Problem:
    """Explain a party that fails alone: unknown package, no wheels for this Python, or no such version."""
    asked = str(Requirement(party.requirement).specifier).removesuffix(".*")
    value = party.pin.value if party.pin else asked.removeprefix("==")
    what = f"{party.package} {value}".strip()
    if f"{party.package} {_NOT_FOUND}" in reason:
        return Problem(
            message=f"the package index has no `{party.package}`",
            where=party.where,
            hint="is the site's index complete? see --site" if party.pin else _spelling(party.package),
        )
    release, _, local = value.partition("+")
    if local:
        return Problem(
            message=f"{what} does not exist",
            where=party.where,
            hint=f"`+{local}` is a local version, and only an index of its own has such builds: name it "
            f"under `extra_indexes:` of the site file (--site), or write {release}",
        )
    pythons = [
        python
        for python, found in zip(
            _PYTHONS,
            _parallel(lambda python: _alone(party, replace(target, python=python)), _PYTHONS),
            strict=True,
        )
        if isinstance(found, str)
    ]
    near = _nearest(party, target)
    values = (
        f"; for Python {target.python} there is {near}"
        if near
        else f"; none has a wheel for Python {target.python}"
    )
    if pythons:
        return Problem(
            message=f"{what} has no wheel for Python {target.python} "
            f"and glibc {target.glibc} on {target.architecture}",
            where=party.where,
            hint=f"it has some for Python {', '.join(pythons)}{values}",
        )
    if "no usable wheels" in reason or "has no wheels" in reason:
        return Problem(
            message=f"{what} has no wheel that runs on glibc {target.glibc}, {target.architecture}",
            where=party.where,
            hint="if it is only available as source, compile it: "
            f"`compile: [{{name: {party.package}}}]`{values}",
        )
    return Problem(
        message=f"{what} does not exist",
        where=party.where,
        hint=f"the nearest is {near}" if near else f"no version has a wheel for Python {target.python}",
    )


def _spelling(package: str) -> str:
    """Suggest a package for an unknown one, among those that training images often have."""
    text = resources.files(__package__).joinpath("often.txt").read_text(encoding="utf-8")
    often = " ".join(line for line in text.splitlines() if not line.startswith("#")).split()
    return yamlfile.nearest(package, often, cutoff=0.75) or "check the spelling"


def _where_it_looked(problem: Problem, reason: str) -> Problem:
    """Add that only one index was asked: the first that has the package, although it lacks the version."""
    only = re.search(r"was found on (\S+), but not at the requested version", reason)
    if not only:
        return problem
    more = f"only {only[1]} was asked, the first index that has it: see `index_strategy:` of the site file"
    return replace(problem, hint=f"{problem.hint}; {more}")


def _nearest(party: Party, target: Target) -> str:
    """Return the nearest values below and above a pin that the index has; the newest for other parties."""
    if not party.pin:
        newest = _try((party.package,), (), target, dependencies=False)
        return f"{party.package} {newest.versions[party.package]}" if newest else ""
    queries = [(f"{party.package}<{party.pin.value}", False), (f"{party.package}>{party.pin.value}", True)]
    answers = _parallel(
        lambda item: _try((item[0],), (), target, dependencies=False, lowest=item[1]), queries
    )
    versions = [answer.versions[party.package] for answer in answers if answer]
    # Some names were first registered with an empty package, version 0.0.0.
    values = [_like(version, party.pin) for version in versions if any(Version(version).release)]
    return " or ".join(dict.fromkeys(f'"{value}"' for value in values))


def _split(
    everyone: Sequence[Party], forced: tuple[str, ...], target: Target
) -> tuple[list[Party], list[Party], Solution | None]:
    """Split parties into those that work together and those that clash with them; earlier ones stay.

    Also returns the solution for those that stay.
    """
    kept: list[Party] = []
    clashing: list[Party] = []
    rest = list(everyone)
    while rest:
        solution = _try(_requirements([*kept, *rest]), forced, target)
        if solution:
            return [*kept, *rest], clashing, solution
        # Adding requirements never makes them solvable, so bisection finds the longest solvable prefix.
        low, high = 0, len(rest) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if _try(_requirements([*kept, *rest[:middle]]), forced, target):
                low = middle
            else:
                high = middle - 1
        kept += rest[:low]
        clashing += rest[low : low + 1]
        rest = rest[low + 1 :]
    return kept, clashing, _try(_requirements(kept), forced, target)


def _clash(
    party: Party, version: str, kept: Sequence[Party], forced: tuple[str, ...], target: Target
) -> Problem:
    """Explain a party that works alone, but not with the others."""
    try:
        solution = solve(
            SolveRequest(requirements=(*_requirements(kept), party.package), overrides=forced), target
        )
    except UnsolvableError:
        return Problem(
            message=f"{party.label} does not fit with the rest: {_reason(party, kept, forced, target)}",
            where=party.where,
            hint="no other value works either: drop it, or change the others",
        )
    works = solution.versions[party.package]
    same = [other for other in kept if other.package == party.package]
    blockers = [
        f"{other.where if party.in_file else other.key} asks for {other.requirement}" for other in same
    ]
    blockers += contradictions(party.package, version, solution, target)
    reason = "; ".join(blockers) or _reason(party, kept, forced, target)
    ways = []
    if party.pin:
        ways.append(f'set {party.pin.pin}: "{_like(works, party.pin)}"')
        askers = solution.parents.get(party.package, frozenset())
        ways += [
            f'or {other.pin.pin}: "{value}", which needs {party.package} {version}'
            for other in kept
            if other.pin and other.package in askers
            if (value := _other_value(other.pin, [*kept, party], [party.package], forced, target))
        ]
        if not (party.by_apt and isinstance(_alone(party, target), UnsolvableError)):
            ways.append(f"or force it with `override: [{party.pin.pin}]`")
    else:
        ways.append(party.advice.replace("{version}", works) or f"{party.package} {works} would work")
    return Problem(message=f"{party.label} clashes: {reason}", where=party.where, hint=", ".join(ways))


def _idle_problem(
    request: Request, loader: Pinned, idle: Sequence[Pinned], solution: Solution, target: Target
) -> Problem:
    root = canonicalize_name(loader.package)
    tree = solution.tree(root)
    version = solution.versions[root]
    loaded = {pin.pin: sorted(family(request.selection.components[pin.pin]) & tree) for pin in idle}
    names = [name for packages in loaded.values() for name in packages]
    pins = ", ".join(f'{pin.pin} "{pin.value}" ({pin.package})' for pin in idle)
    needed = [canonicalize_name(pin.package) for pin in idle]
    other = _other_value(loader, parties(request), needed, _forced(request), target)
    ways = [
        f'{pin.pin}: "{_like(solution.versions[loaded[pin.pin][0]], pin)}"' for pin in idle if loaded[pin.pin]
    ]
    hints = [f"with {root} {version} set {', '.join(ways)}"] if ways else []
    hints += [f'keep these pins and set {loader.pin}: "{other}"'] if other else []
    return Problem(
        message=f"{root} {version} loads {', '.join(names) or 'none of them'}, "
        f"so these pins would never be loaded: {pins}",
        where=request.places.of("pins", loader.pin),
        hint="; or ".join(hints) or f"drop these pins, or choose another {loader.pin}",
    )


def _other_value(
    pin: Pinned,
    others: Sequence[Party],
    needed: Sequence[str],
    forced: tuple[str, ...],
    target: Target,
) -> str:
    """Return another value of a pin that works with the others and loads what it should; "" if there is none.

    Tries older values first, from the newest on; then the next newer one.
    """
    package = canonicalize_name(pin.package)
    rest = _requirements(other for other in others if other.package != package)
    bound = f"<{pin.value}"
    for _ in range(_STEPS):
        solution = _try((*rest, package + bound), forced, target)
        if solution is None:
            break
        version = solution.versions[package]
        if set(needed) <= solution.tree(package):
            return _like(version, pin)
        bound = f"<{version}"
    # Only with the other pins, which leave little choice: `lowest` would apply to all requirements.
    pins = _requirements(other for other in others if other.pin and other.package != package)
    query = (*pins, f"{package}>{pin.value}")
    solution = _try(query, forced, target, lowest=True)
    if solution is None or not set(needed) <= solution.tree(package):
        return ""
    version = solution.versions[package]
    holds = _try((*rest, f"{package}=={version}"), forced, target)
    return _like(version, pin) if holds else ""


def _reason(party: Party, kept: Sequence[Party], forced: tuple[str, ...], target: Target) -> str:
    try:
        solve(SolveRequest(requirements=_requirements([*kept, party]), overrides=forced), target)
    except UnsolvableError as error:
        return _short(str(error))
    return "the solver gave no reason"


def _short(reason: str) -> str:
    """Return the core of uv's explanation."""
    text = reason.partition("cause: ")[2] or reason
    text = text.partition(" hint: ")[0]
    return text.replace(", we can conclude that your requirements are unsatisfiable.", ".")


def _like(version: str, pin: Pinned) -> str:
    """Cut a version to the precision of a pin: 9.10.2.21 beside "9.9" is "9.10"."""
    release = Version(version).release
    short = ".".join(str(part) for part in release[: len(Version(pin.value).release)])
    return Version(version).public if short == pin.value else short


def _forced(request: Request) -> tuple[str, ...]:
    return tuple(pin.requirement for pin in request.forced)


def _requirements(parties: Iterable[Party]) -> tuple[str, ...]:
    return tuple(party.requirement for party in parties)


def _try(
    requirements: tuple[str, ...],
    forced: tuple[str, ...],
    target: Target,
    *,
    dependencies: bool = True,
    lowest: bool = False,
) -> Solution | None:
    query = SolveRequest(
        requirements=requirements, overrides=forced, dependencies=dependencies, lowest=lowest
    )
    try:
        return solve(query, target)
    except UnsolvableError:
        return None


def _parallel(function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return list(pool.map(function, items))
