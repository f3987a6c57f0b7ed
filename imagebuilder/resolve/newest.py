"""Find the newest versions of pins that still work together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.bases.read import Base
from imagebuilder.catalog import Selection
from imagebuilder.core import platforms
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import ConflictError, ImagebuilderError
from imagebuilder.host.site import Site
from imagebuilder.lock.file import LockFile
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import archivepins, conflicts, debian
from imagebuilder.resolve.request import Pinned, Request, request
from imagebuilder.resolve.uv import Solution, SolveRequest, Target, UnsolvableError, solve

log = logging.getLogger(__name__)

# How many releases of a framework to try, the newest first, until one loads what is pinned. The newest may be
# for a newer CUDA.
_STEPS = 30
# From how many clashing pins on a whole set is proposed.
_SEVERAL = 2


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Which pins may move, and how far.

    Attributes:
        only: these pins; None for all that the recipe does not force.
        patch: within their first two numbers, instead of within their major version.

    """

    only: frozenset[str] | None = None
    patch: bool = False

    def stays(self, name: str, recipe: Recipe) -> str:
        """Return why a pin must not move; empty if it may."""
        if name in recipe.override:
            return "forced by `override:`"
        return "" if self.only is None or name in self.only else "not asked for"

    def loosened(self, value: str) -> str:
        """Return the part of a version that stays.

        >>> Moves().loosened("2.10.0"), Moves(patch=True).loosened("2.10.0")
        ('2', '2.10')
        """
        return ".".join(value.split(".")[: 2 if self.patch else 1])


ALL_PINS = Moves()


def newest_for_all(
    selection: Selection, file: LockFile, site: Site, bases: Mapping[str, Base], moves: Moves = ALL_PINS
) -> dict[str, str]:
    """Return the newest value of each pin that all platforms of a recipe have; see `newest_pins`."""
    newest = [
        newest_pins(selection, debian.glibc(lock.installed), site, name, bases.get(name), moves)
        for name, lock in zip(file.platforms, file.sections, strict=True)
    ]
    return {
        name: min((pins[name] for pins in newest), key=lambda value: (Version(value), value))
        for name in selection.recipe.pins
    }


def newest_pins(  # noqa: PLR0917
    selection: Selection,
    glibc: str,
    site: Site,
    platform: str = "",
    base: Base | None = None,
    moves: Moves = ALL_PINS,
) -> dict[str, str]:
    """Return the newest value of each pin, as precise as in the recipe.

    Pins move within their major version, because the major of CUDA or gcc is a person's choice, and part of
    packages' names. Pins under `override:` stay.

    Args:
        selection: the recipe, with its components.
        glibc: version of the base's C library, as in "2.41".
        site: how to reach indexes and archives.
        platform: one of the recipe's platforms; by default its first.
        base: the recipe's base from a registry; None for a suite.
        moves: which pins may move, and how far.

    Returns:
        Every pin of the recipe with its value, moved or not.

    Raises:
        ConflictError: the pins cannot be used together even when loosened.
        FetchError: an index or an archive cannot be reached.

    """
    recipe = selection.recipe
    loose = {
        name: value if moves.stays(name, recipe) else moves.loosened(value)
        for name, value in recipe.pins.items()
    }
    wanted = request(selection.with_pins(loose), platform)
    if base is not None:
        wanted = replace(wanted, distribution=base.system.distribution, suite=base.system.suite)
    target = Target(python=wanted.python, glibc=glibc, architecture=wanted.architecture, site=site)
    try:
        solution = _newest_loaded(wanted, target)
    except UnsolvableError as error:
        raise conflicts.explain(wanted, target, str(error)) from None
    newest = {pin.pin: solution.versions[canonicalize_name(pin.package)] for pin in wanted.wheel_pins}
    newest |= {m.wheel.pin: solution.versions[canonicalize_name(m.wheel.package)] for m in wanted.linked}
    versions: dict[str, str] = {}
    if base is None:
        debs, _ = debian.resolve_debs(wanted, site)
    else:
        versions = {package.name: package.version for package in base.system.packages}
        debs, _ = debian.resolve_debs(archivepins.refined(wanted, solution.versions), site, base.system)
    versions |= {deb.name: deb.version for deb in debs}
    newest |= {pin.pin: debversion.upstream(versions[pin.package]) for pin in wanted.deb_pins}
    return {
        name: value if moves.stays(name, recipe) or name not in newest else _as_precise(newest[name], value)
        for name, value in recipe.pins.items()
    }


def with_whole_set(error: ImagebuilderError, wanted: Request, target: Target) -> ImagebuilderError:
    """Add to the explanation of several clashes one set of pins that works, so that one edit mends them all.

    Pins by which components choose their packages stay: cuda, and those under `override:`. The others move
    within their major versions.

    Args:
        error: from `conflicts.explain`.
        wanted: the request that it explains.
        target: the environment that was solved for.

    """
    recipe = wanted.selection.recipe
    clashing = [problem for problem in error.problems if ": pins." in problem.where]
    if len(clashing) < _SEVERAL:
        return error
    deciding = _choosing(wanted.selection)
    pins = {
        name: value if name in deciding or name in recipe.override else value.split(".")[0]
        for name, value in recipe.pins.items()
    }
    try:
        loose = request(wanted.selection.with_pins(pins), platforms.of(wanted.architecture))
        solution = _newest_loaded(loose, target)
    except (UnsolvableError, ConflictError) as nothing:
        log.debug("no set of pins works: %s", nothing)
        return error
    newest = {pin.pin: solution.versions[canonicalize_name(pin.package)] for pin in loose.wheel_pins}
    moved = [
        f'{name}: "{value}"'
        for name, old in recipe.pins.items()
        if name in newest and (value := _as_precise(newest[name], old)) != old and name not in deciding
    ]
    last = clashing[-1]
    whole = replace(last, hint=f"change all at once: {', '.join(moved)}; or {last.hint}")
    return ConflictError.of([whole if problem is last else problem for problem in error.problems])


def _newest_loaded(wanted: Request, target: Target) -> Solution:
    """Solve for the newest versions, and skip releases that would not load a pinned component.

    Raises:
        UnsolvableError: nothing can be installed together.
        ConflictError: none of the releases tried loads what is pinned.

    """
    pins = {pin.pin: pin for pin in wanted.wheel_pins}
    overrides = tuple(pins[name].requirement for name in wanted.overrides if name in pins)
    # We want the newest torch with the NCCL that it requires, not the newest NCCL with a torch so old that it
    # requires none. So only those pins count here that choose packages, and those that nothing loads.
    components = wanted.selection.components
    loaded = {other for name in pins for other in components[name].loads}
    loaded -= {*_choosing(wanted.selection), *wanted.overrides}
    ordered = sorted(pins.values(), key=lambda pin: not components[pin.pin].loads)
    query = SolveRequest(
        requirements=(
            *(pin.requirement for pin in ordered if pin.pin not in loaded),
            *(linked.wheel.requirement for linked in wanted.linked),
            *wanted.requirements,
        ),
        overrides=overrides,
        constraints=wanted.constraints,
    )
    limits: list[str] = []
    for _ in range(_STEPS):
        solution = solve(replace(query, requirements=(*query.requirements, *limits)), target)
        idle = conflicts.idle_pins(wanted, solution)
        if not idle and all(_fits(pin, solution) for pin in pins.values()):
            return solution
        for loader in [pin for pin, _ in idle] or [pin for pin in ordered if components[pin.pin].loads]:
            version = solution.versions[canonicalize_name(loader.package)]
            log.info("%s %s does not load what is pinned beside it", loader.package, version)
            # Local versions (2.13.0+cpu) are not allowed in ordered comparisons (PEP 440).
            limits.append(f"{loader.package}{'!=' if '+' in version else '<'}{version}")
    raise ConflictError(
        f"none of the {_STEPS} newest releases loads what is pinned beside it",
        where=wanted.places.of("pins"),
        hint="pin a version by hand",
    )


def _choosing(selection: Selection) -> frozenset[str]:
    """Return the pins by which the recipe's components choose their packages: cuda."""
    components = selection.components
    return frozenset(
        name
        for pin in selection.recipe.pins
        for provider in components[pin].providers
        for name in provider.when
    )


def _fits(pin: Pinned, solution: Solution) -> bool:
    version = solution.versions[canonicalize_name(pin.package)]
    return Requirement(pin.requirement).specifier.contains(version, prereleases=True)


def _as_precise(version: str, value: str) -> str:
    """Cut a version to as many numbers as a pin has.

    >>> _as_precise("12.8.90", "12.8"), _as_precise("2.13.0+cpu", "2.10.0"), _as_precise("14.2.0", "14")
    ('12.8', '2.13.0', '14')
    """
    return ".".join(version.partition("+")[0].split(".")[: len(value.split("."))])
