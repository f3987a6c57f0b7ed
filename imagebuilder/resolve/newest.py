"""Find the newest versions of pins that still work together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.bases.read import Base
from imagebuilder.catalog import Selection
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.lock.file import LockFile
from imagebuilder.resolve import archivepins, conflicts, debian
from imagebuilder.resolve.request import Request, request
from imagebuilder.resolve.uv import Solution, SolveRequest, Target, UnsolvableError, solve

log = logging.getLogger(__name__)

# How many releases of a framework to try, the newest first, until one loads what is pinned. The newest may be
# for a newer CUDA.
_STEPS = 30


def newest_for_all(
    selection: Selection, file: LockFile, site: Site, bases: Mapping[str, Base]
) -> dict[str, str]:
    """Return the newest value of each pin that all platforms of a recipe have; see `newest_pins`."""
    newest = [
        newest_pins(selection, debian.glibc(lock.installed), site, name, bases.get(name))
        for name, lock in zip(file.platforms, file.sections, strict=True)
    ]
    return {
        name: min((pins[name] for pins in newest), key=lambda value: (Version(value), value))
        for name in selection.recipe.pins
    }


def newest_pins(
    selection: Selection, glibc: str, site: Site, platform: str = "", base: Base | None = None
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

    Returns:
        Every pin of the recipe with its value, moved or not.

    Raises:
        ConflictError: the pins cannot be used together even when loosened.
        FetchError: an index or an archive cannot be reached.

    """
    recipe = selection.recipe
    loose = {
        name: value if name in recipe.override else value.split(".")[0] for name, value in recipe.pins.items()
    }
    wanted = request(selection.with_pins(loose), platform)
    if base is not None:
        wanted = replace(wanted, distribution=base.system.distribution, suite=base.system.suite)
    target = Target(python=wanted.python, glibc=glibc, architecture=wanted.architecture, site=site)
    solution = _newest_loaded(wanted, target)
    newest = {pin.pin: solution.versions[canonicalize_name(pin.package)] for pin in wanted.wheel_pins}
    newest |= {m.wheel.pin: solution.versions[canonicalize_name(m.wheel.package)] for m in wanted.linked}
    versions: dict[str, str] = {}
    if base is None:
        debs = debian.resolve_debs(wanted, site)
    else:
        versions = {package.name: package.version for package in base.system.packages}
        debs = debian.resolve_debs(archivepins.refined(wanted, solution.versions), site, base.system)
    versions |= {deb.name: deb.version for deb in debs}
    newest |= {pin.pin: debversion.upstream(versions[pin.package]) for pin in wanted.deb_pins}
    return {
        name: value if name in recipe.override or name not in newest else _as_precise(newest[name], value)
        for name, value in recipe.pins.items()
    }


def _newest_loaded(wanted: Request, target: Target) -> Solution:
    """Solve for the newest versions, and skip releases that would not load a pinned component."""
    pins = {pin.pin: pin for pin in wanted.wheel_pins}
    overrides = tuple(pins[name].requirement for name in wanted.overrides if name in pins)
    # uv decides on the first requirements first. We want the newest torch with the CUDA that it loads, not
    # the newest CUDA with any torch.
    components = wanted.selection.components
    ordered = sorted(pins.values(), key=lambda pin: not components[pin.pin].loads)
    query = SolveRequest(
        requirements=(
            *(pin.requirement for pin in ordered),
            *(linked.wheel.requirement for linked in wanted.linked),
            *wanted.requirements,
        ),
        overrides=overrides,
        constraints=wanted.constraints,
    )
    limits: list[str] = []
    for _ in range(_STEPS):
        try:
            solution = solve(replace(query, requirements=(*query.requirements, *limits)), target)
        except UnsolvableError as error:
            raise conflicts.explain(wanted, target, str(error)) from None
        idle = conflicts.idle_pins(wanted, solution)
        if not idle:
            return solution
        for loader, _ in idle:
            version = solution.versions[canonicalize_name(loader.package)]
            log.info("%s %s does not load what is pinned beside it", loader.package, version)
            # Local versions (2.13.0+cpu) are not allowed in ordered comparisons (PEP 440).
            limits.append(f"{loader.package}{'!=' if '+' in version else '<'}{version}")
    raise ConflictError(
        f"none of the {_STEPS} newest releases loads what is pinned beside it",
        where=wanted.places.of("pins"),
        hint="pin a version by hand",
    )


def _as_precise(version: str, value: str) -> str:
    """Cut a version to as many numbers as a pin has.

    >>> _as_precise("12.8.90", "12.8"), _as_precise("2.13.0+cpu", "2.10.0"), _as_precise("14.2.0", "14")
    ('12.8', '2.13.0', '14')
    """
    return ".".join(version.partition("+")[0].split(".")[: len(value.split("."))])
