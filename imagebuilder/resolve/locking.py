"""Make a recipe's lock: run both resolvers, keep what may stay, and find the version of every pin."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from packaging.utils import canonicalize_name

from imagebuilder.bases.read import Base
from imagebuilder.catalog import Selection, limits
from imagebuilder.core.yamlfile import nearest
from imagebuilder.debian import suites
from imagebuilder.errors import ConflictError, Problem
from imagebuilder.host.site import Site
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Archives, Build, Deb, Installed, Lock, Override, ProjectBuild, Wheel
from imagebuilder.resolve import agreement, archivepins, basefit, compiles, debian, debpins, python
from imagebuilder.resolve import builds as build_sources
from imagebuilder.resolve.request import Request, request

log = logging.getLogger(__name__)


def make_locks(
    selection: Selection,
    site: Site,
    previous: LockFile | None,
    upgrade: Collection[str] | None,
    bases: Mapping[str, Base] = MappingProxyType({}),
) -> LockFile:
    """Resolve a recipe for each of its platforms.

    The first is resolved alone; the others use its versions of wheels if these exist for them.

    Args:
        selection: the recipe to resolve, with its components.
        site: how to reach indexes and archives.
        previous: the present locks; versions that still fit are kept.
        upgrade: None keeps every version that fits, an empty collection moves everything, and names move
            these pins or packages.
        bases: the base image of each platform, for a base from a registry; empty for a suite.

    Raises:
        ConflictError: pins that cannot be used together; names the platforms unless it is all of them.
        FetchError: an index or an archive cannot be reached.

    """
    recipe = selection.recipe
    before = {name: previous.section(name) if previous else None for name in recipe.platforms}
    names = {name: _known_names(selection, name, before[name]) for name in recipe.platforms}
    _check_names(selection, names, upgrade)
    made: list[Lock] = []
    problems: dict[str, tuple[Problem, ...]] = {}
    for name in recipe.platforms:
        # Names that are not in this platform's image change nothing for it.
        moving = upgrade if not upgrade else (set(upgrade) & names[name]) or None
        step = _LockStep(
            platform=name,
            previous=before[name],
            upgrade=moving,
            like=made[0] if made else None,
            base=bases.get(name),
        )
        try:
            made.append(_make_lock(selection, site, step))
        except ConflictError as error:
            problems[name] = error.problems
    if problems:
        raise ConflictError.of(_with_platforms(problems, recipe.platforms))
    return LockFile(sections=tuple(made))


def make_lock(
    selection: Selection,
    site: Site,
    previous: Lock | None,
    upgrade: Collection[str] | None,
    base: Base | None = None,
) -> Lock:
    """Resolve a recipe for a single platform; see `make_locks`."""
    before = LockFile(sections=(previous,)) if previous is not None else None
    bases = {selection.recipe.platforms[0]: base} if base else {}
    (lock,) = make_locks(selection, site, before, upgrade, bases).sections
    return lock


@dataclass(frozen=True, kw_only=True)
class _LockStep:
    """What to resolve for one platform: its present lock, what may move, a lock to follow, its base."""

    platform: str
    previous: Lock | None
    upgrade: Collection[str] | None
    like: Lock | None
    base: Base | None


def _make_lock(selection: Selection, site: Site, step: _LockStep) -> Lock:
    previous, upgrade = step.previous, step.upgrade
    wanted = request(selection, step.platform)
    inputs = wanted.checksum()
    if previous is not None and previous.inputs == inputs and upgrade is None:
        limits.require(selection, previous.pins, basefit.older_drivers(selection, previous.image))
        return previous
    base = step.base
    if base is None:
        suites.facts(wanted.distribution, wanted.suite, selection.places.of("base"))
    else:
        wanted = replace(wanted, distribution=base.system.distribution, suite=base.system.suite)
    older = basefit.older_drivers(selection, base.image if base else None)
    problems: list[Problem] = limits.problems(selection, {}, older)
    problems += basefit.problems(selection, base.image) if base else []
    before = previous.builds if previous is not None and previous.python == wanted.python else ()
    prepared = compiles.prepare(wanted, site, before, upgrade)
    wanted = compiles.wanting(wanted, prepared)
    (debs, archives), wheels, overrides = _resolve(wanted, site, step, problems)
    builds: tuple[Build, ...] = ()
    if debs and base is None:
        try:
            old = before if previous is not None and previous.debs == debs else ()
            builds = build_sources.resolve_builds(wanted, debs, site, keep=old, upgrade=upgrade)
            problems += _twice(wanted, builds, wheels)
            if wheels:
                stay = before if upgrade is None else ()
                builds = (
                    *builds,
                    *compiles.resolve(wanted, prepared, compiles.Image(debs=debs, wheels=wheels), site, stay),
                )
        except ConflictError as error:
            problems.extend(error.problems)
    project: ProjectBuild | None = None
    if wheels or not problems:
        try:
            project = _project(wanted, site, step, base.system.packages if base else debs)
            problems += _own_name(wanted, (*wheels, *(project.wheels if project else ())))
        except ConflictError as error:
            problems.extend(error.problems)
    if problems:
        raise ConflictError.of(problems)
    lock = Lock(
        inputs=inputs,
        recipe=wanted.recipe,
        base=f"{wanted.distribution}:{wanted.suite}",
        image=base.image if base else None,
        architecture=wanted.architecture,
        python=wanted.python,
        pins={},
        packages=wanted.packages,
        archives=archives,
        requirements=agreement.recorded(wanted),
        overrides=(*overrides, *(basefit.overrides(selection, base.image) if base else ())),
        wheels=wheels,
        debs=debs,
        builds=builds,
        project=project,
        catalog=selection.recorded,
    )
    pins = agreement.pin_versions(selection, lock)
    limits.require(selection, pins, older)
    return lock.model_copy(update={"pins": pins})


def _twice(wanted: Request, builds: tuple[Build, ...], wheels: tuple[Wheel, ...]) -> list[Problem]:
    """Report components that are compiled and also come as a wheel, because something requires that."""
    names = {source.name for build in builds for source in build.sources if source.origin == "index"}
    return [
        Problem(
            message=f"`{wheel.name}` would be installed twice: compiled, and as the wheel {wheel.file}, "
            "which another package requires",
            where=wanted.places.of("pins", wheel.name),
            hint=f"leave `{wheel.name}` out of `build:`",
        )
        for wheel in wheels
        if wheel.name in names
    ]


def _project(
    wanted: Request, site: Site, step: _LockStep, installed: Sequence[Deb | Installed]
) -> ProjectBuild | None:
    """Resolve what the user's project is built with, by itself: none of it is in the image."""
    asked = wanted.project
    if asked is None:
        return None
    previous = step.previous
    kept = previous.project.wheels if previous and previous.project else ()
    if previous is None or previous.python != wanted.python:
        kept = ()
    alone = replace(
        wanted,
        wheel_pins=(),
        requirements=asked.requires,
        pip=(),
        owners=(),
        overrides=(),
        linked=(),
        files=(),
    )
    try:
        wheels, _ = python.resolve_wheels(
            alone, debian.glibc(installed), site, keep=kept, upgrade=step.upgrade
        )
    except ConflictError as error:
        listed = ", ".join(asked.requires)
        raise ConflictError(
            f"what the project is built with has no wheels ({listed}): {error.problems[0].message}",
            where=wanted.places.of("project"),
            hint="change `requires` of [build-system] in its pyproject.toml",
        ) from error
    return ProjectBuild(name=asked.name, requires=asked.requires, wheels=wheels)


def _own_name(wanted: Request, wheels: Sequence[Wheel]) -> list[Problem]:
    """Refuse an index's package of the project's own name: one would be there in place of the other."""
    return [
        Problem(
            message=f"`{wheel.name}` is the project's own name, and {wheel.file} is required too",
            where=wanted.places.of("project"),
            hint="give the project another name, or leave out what requires that package",
        )
        for wheel in wheels
        if wanted.project and wheel.name == wanted.project.name
    ]


def _resolve(
    wanted: Request, site: Site, step: _LockStep, problems: list[Problem]
) -> tuple[tuple[tuple[Deb, ...], Archives], tuple[Wheel, ...], tuple[Override, ...]]:
    """Run both resolvers, even if one fails, to report all problems at once.

    On a base from a registry the wheels come first, because Debian packages of the same components must have
    their versions. On a suite the Debian packages come first, because the version of their C library decides
    which wheels run. If they cannot be resolved, a recent version is assumed.
    """
    debs: tuple[Deb, ...] = ()
    archives: Archives = {}
    wheels: tuple[Wheel, ...] = ()
    overrides: tuple[Override, ...] = ()
    base = step.base
    if base is None:
        try:
            debs, archives = _debs(wanted, site, step)
        except ConflictError as error:
            problems.extend(error.problems)
    installed = base.system.packages if base else debs
    glibc = debian.glibc(installed) if installed else "2.40"
    try:
        kept, moving = _kept_wheels(wanted, glibc, site, step)
        wheels, overrides = python.resolve_wheels(wanted, glibc, site, keep=kept, upgrade=moving)
    except ConflictError as error:
        problems.extend(error.problems)
    if base is not None:
        versions = {wheel.name: wheel.version for wheel in wheels}
        try:
            debs, archives = _debs(archivepins.refined(wanted, versions), site, step)
        except ConflictError as error:
            problems.extend(error.problems)
    return (debs, archives), wheels, overrides


def _debs(wanted: Request, site: Site, step: _LockStep) -> tuple[tuple[Deb, ...], Archives]:
    """Return the lock's packages if the request for them is unchanged, because archives change every day.

    The time of their archives stays with them, also where the archives now have the same ones.
    """
    previous, base = step.previous, step.base
    if (
        previous is not None
        and previous.packages == wanted.packages
        and previous.base == f"{wanted.distribution}:{wanted.suite}"
        and (previous.image and previous.image.digest) == (base and base.image.digest)
        and previous.architecture == wanted.architecture
        and not _moves_debs(wanted, previous, step.upgrade)
        and not debpins.pin_problems(wanted, previous.installed)
        and archivepins.are_met(wanted, previous.installed)
    ):
        return previous.debs, previous.archives
    debs, archives = debian.resolve_debs(wanted, site, *([base.system] if base else []))
    same = previous is not None and previous.debs == debs and previous.archives.keys() == archives.keys()
    return debs, previous.archives if same and previous else archives


def _moves_debs(wanted: Request, previous: Lock, upgrade: Collection[str] | None) -> bool:
    if upgrade is None:
        return False
    names = {pinned.pin for pinned in wanted.deb_pins} | {deb.name for deb in previous.debs}
    return not upgrade or bool(names & set(upgrade))


def _kept_wheels(
    wanted: Request, glibc: str, site: Site, step: _LockStep
) -> tuple[tuple[Wheel, ...], Collection[str] | None]:
    """Return the wheels whose versions stay, and the names that may move: None if no others may.

    Platforms after the first use the first one's versions, including those that moved.
    """
    previous, like = step.previous, step.like
    own = previous.wheels if previous is not None and previous.python == wanted.python else ()
    if like is None:
        return own, step.upgrade
    theirs = python.available(like.wheels, wanted, glibc, site)
    moving = {canonicalize_name(name) for name in step.upgrade or ()}
    if step.upgrade is not None and not step.upgrade:
        own = ()
    else:
        own = tuple(wheel for wheel in own if wheel.name not in moving)
    return (*own, *theirs), None


def _known_names(selection: Selection, platform: str, previous: Lock | None) -> frozenset[str]:
    wanted = request(selection, platform)
    known = {pinned.pin for pinned in (*wanted.wheel_pins, *wanted.deb_pins)} | set(wanted.packages)
    known |= {package for package, _ in wanted.owners} | {build.component for build in wanted.builds}
    known |= {"base"} if selection.recipe.image else set()
    if previous is not None:
        known |= {wheel.name for wheel in previous.wheels} | {deb.name for deb in previous.debs}
    return frozenset(known)


def _check_names(
    selection: Selection, names: Mapping[str, Collection[str]], upgrade: Collection[str] | None
) -> None:
    """Refuse unknown names: a mistyped name would look as if it were up to date."""
    unknown = sorted(set(upgrade or ()).difference(*names.values()))
    asked = (re.split(r"[^A-Za-z0-9._-]", text.strip(), maxsplit=1)[0] for text in selection.recipe.pip)
    known = sorted({*selection.recipe.pins, *selection.recipe.apt, *asked})
    if unknown:
        raise ConflictError.of(
            [
                Problem(
                    message=f"`{name}` cannot be upgraded: nothing in the recipe has that name",
                    where=selection.recipe.name,
                    hint=nearest(name, {*known, *chain(*names.values())}) or f"it has: {', '.join(known)}",
                )
                for name in unknown
            ]
        )


def _with_platforms(
    problems: Mapping[str, tuple[Problem, ...]], platforms: Collection[str]
) -> tuple[Problem, ...]:
    """Return each problem once, with its platform unless all have it."""
    merged = []
    for name, own in problems.items():
        for problem in own:
            if all(problem in problems.get(other, ()) for other in platforms):
                merged.append(problem)
            else:
                hint = "; ".join(filter(None, (problem.hint, f"or leave {name} out of `platforms:`")))
                merged.append(replace(problem, message=f"on {name}: {problem.message}", hint=hint))
    return tuple(dict.fromkeys(merged))
