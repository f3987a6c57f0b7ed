"""Lock a recipe, and report what changed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.catalog import Selection, limits
from imagebuilder.core import files, platforms
from imagebuilder.errors import ConflictError, ImagebuilderError, LockError, Problem
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.resolve import filepins
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from imagebuilder.workflow.plans import plan_of, read_locks, read_recipe, require_agreement

if TYPE_CHECKING:
    from imagebuilder.bases.read import Base
    from imagebuilder.image.diff import Side

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LockUpdate:
    """The result of locking a recipe.

    Attributes:
        previous: the old lock; None if there was none.
        made: the new lock.
        notes: facts about the new lock that are worth knowing before the image is used.

    """

    previous: LockFile | None
    made: LockFile
    notes: tuple[str, ...] = ()


def update_lock(
    path: Path, site: Path | None, upgrade: Collection[str] | None, store: Store, *, tools: str = ""
) -> LockUpdate:
    """Resolve a recipe and write its lock.

    The layers of a base from a registry are downloaded into the store, because their packages decide what to
    add.
    """
    # Late: `check` and `plan` resolve nothing, and should take half a second.
    from imagebuilder.host.site import detect
    from imagebuilder.layers.hints import learn
    from imagebuilder.resolve.locking import make_locks

    try:
        selection, inputs = read_recipe(path)
    except ConflictError as error:
        raise _with_hidden_clashes(error, path, site) from None
    lock_path = locks.path_for(path)
    previous = _previous(path, selection, inputs)
    bases = _bases(selection, inputs, site, store, previous=previous, upgrade=upgrade)
    surroundings = detect(site, distribution=_distribution(selection, bases), tools=tools)
    made = learn(make_locks(selection, surroundings, previous, upgrade, bases), store)
    _require_named(selection, made)
    if made != previous:
        lockfile.write(made, lock_path)
    notes = dict.fromkeys(note for lock in made.sections for note in limits.notes(selection, lock.pins))
    for name, lock in zip(made.platforms, made.sections, strict=True):
        notes |= dict.fromkeys(filepins.notes(request(selection, name), lock))
    return LockUpdate(previous=previous, made=made, notes=tuple(notes))


def update_pins(
    path: Path, site: Path | None, store: Store, *, write: bool, tools: str = ""
) -> tuple[Side, Side, dict[str, tuple[str, str]]]:
    """Move a recipe's pins to the newest versions that work together, and lock again.

    Args:
        path: the recipe; it is rewritten with its lock, and keeps comments and order.
        site: a site file, or None.
        store: knows layers that were already made.
        write: False changes no files.
        tools: where apt runs: see `site.detect`.

    Returns:
        The image before and after, and the old and new value of each pin that moves.

    Raises:
        ConflictError: no versions work together.
        InputError: the recipe is wrong, or has a pin in a form that cannot be edited.

    """
    from imagebuilder.host.site import detect
    from imagebuilder.image import diff
    from imagebuilder.layers.hints import learn
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.resolve.newest import newest_for_all

    read = read_locks(path)
    selection, file, project = read.selection, read.file, read.copied.project
    bases = _bases(selection, {}, site, store, previous=file, upgrade=None)
    surroundings = detect(site, distribution=_distribution(selection, bases), tools=tools)
    pins = newest_for_all(selection, file, surroundings, bases)
    was = selection.recipe.pins
    moved = {name: (was[name], new) for name, new in pins.items() if was[name] != new}
    text = recipes.with_pins(path, moved)
    updated = selection.with_pins(pins)
    made = learn(make_locks(updated, surroundings, file, (), bases), store)
    before = diff.of_plans(
        str(path), [(lock, plan_of(selection, lock, project)) for lock in file.sections], store
    )
    after = diff.of_plans(
        f"{path} (updated)", [(lock, plan_of(updated, lock, project)) for lock in made.sections], store
    )
    if write:
        if moved:
            files.write(path, text)
        if made != file:
            lockfile.write(made, locks.path_for(path))
    return before, after, moved


def lock_changes(previous: LockFile | None, made: LockFile) -> list[str]:
    """Describe changes: all pins of a first lock, later the packages that changed; and forced pins.

    With several platforms, changes that differ between them name the platforms.
    """
    told: dict[str, list[str]] = {}
    for name, lock in zip(made.platforms, made.sections, strict=True):
        for line in _lock_changes(previous.section(name) if previous else None, lock):
            told.setdefault(line, []).append(name)
    gone = sorted(set(previous.platforms if previous else ()) - set(made.platforms))
    lines = [
        line if len(names) == len(made.sections) else f"{line} ({', '.join(names)})"
        for line, names in told.items()
    ]
    return [*lines, *(f"{name} removed" for name in gone)]


def _with_hidden_clashes(error: ConflictError, path: Path, site: Path | None) -> ImagebuilderError:
    """Add the conflicts that would only be reported after the missing pin was added."""
    from imagebuilder.host.site import detect
    from imagebuilder.resolve.missing import hidden_clashes

    recipe, places = recipes.read(path, catalog.names())
    # Some problems, such as pins that exclude each other, are found with and without the missing pin.
    found = dict.fromkeys((*error.problems, *hidden_clashes(recipe, places, detect(site))))
    return ConflictError.of(tuple(found))


def _previous(path: Path, selection: Selection, inputs: Mapping[str, str]) -> LockFile | None:
    """Read the lock beside a recipe; None if there is none, or none that can be kept.

    A lock that claims to match this recipe but does not was edited: nothing of it is kept.
    """
    place = locks.path_for(path)
    if not place.exists():
        return None
    try:
        file = lockfile.read(place)
        if {section.inputs for section in file.sections} <= set(inputs.values()):
            require_agreement(selection, file, path)
    except LockError as error:
        log.warning("the existing lock is ignored:\n%s", error)
        return None
    return file


def _require_named(selection: Selection, made: LockFile) -> None:
    """Refuse virtual packages under `apt:`: apt would install one that provides it, which a lock cannot name.

    Raises:
        ConflictError: names every such name.

    """
    problems = [
        Problem(
            message=f"`{name}` is a virtual package: other packages provide it",
            where=selection.places.of_package(name),
            hint="name a package that provides it: `apt-cache showpkg NAME` lists them",
        )
        for section in made.sections
        for name in sorted(
            {package.partition("=")[0] for package in selection.recipe.apt}
            - {package.name for package in section.installed}
        )
    ]
    if problems:
        raise ConflictError.of(list(dict.fromkeys(problems)))


def _bases(
    selection: Selection,
    inputs: Mapping[str, str],
    site: Path | None,
    store: Store,
    *,
    previous: LockFile | None,
    upgrade: Collection[str] | None,
) -> dict[str, Base]:
    """Look up the base image of each platform, if the recipe has one and something must be resolved.

    The lock's base stays, unless everything or the base may move.
    """
    from imagebuilder.bases import read
    from imagebuilder.host.site import detect

    recipe = selection.recipe
    found: dict[str, Base] = {}
    if recipe.image is None:
        return found
    surroundings = detect(site)
    moves = upgrade is not None and (not upgrade or "base" in upgrade)
    for name in recipe.platforms:
        lock = previous.section(name) if previous else None
        if lock is not None and lock.inputs == inputs.get(name) and upgrade is None:
            continue
        before = lock.image if lock else None
        if before is not None and (moves or before.name != recipe.image.name):
            before = None
        try:
            found[name] = read.read(recipe.image, platforms.architecture(name), surroundings, store, before)
        except ImagebuilderError as error:
            place = selection.places.of("base", "image")
            error.problems = tuple(replace(problem, where=place) for problem in error.problems)
            raise
    return found


def _distribution(selection: Selection, bases: Mapping[str, Base]) -> str:
    """Return the distribution, which decides about mirrors; a base image names its own."""
    return next((base.system.distribution for base in bases.values()), selection.recipe.distribution)


def _lock_changes(previous: Lock | None, made: Lock) -> list[str]:
    if previous is None:
        lines = [f"{name} {version}" for name, version in sorted(made.pins.items())]
    else:
        old, new = _versions(previous), _versions(made)
        lines = [
            f"{name} {old.get(name, '(none)')} -> {new.get(name, '(gone)')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    lines += [
        f"override: {item.pin} {item.locked}, though {against}"
        for item in made.overrides
        for against in item.contradicts
    ]
    return lines


def _versions(lock: Lock) -> dict[str, str]:
    debs = {package.name: package.version for package in lock.installed}
    if lock.image:
        debs["base"] = lock.image.digest
    debs |= {f"{source.name} (source)": source.version for source in lock.sources}
    return debs | {wheel.name: wheel.version for wheel in lock.wheels}
