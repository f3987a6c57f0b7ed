"""Locking a recipe: what moves, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import lock as locks
from imagebuilder import lockfile, platforms, textfile
from imagebuilder import recipe as recipes
from imagebuilder.known import learn
from imagebuilder.located import located
from imagebuilder.lock import Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import facts
from imagebuilder.store import Store
from imagebuilder.workflow.plans_of import plan_of, read_locks, read_recipe

if TYPE_CHECKING:
    from imagebuilder.bases.read import Base
    from imagebuilder.diff import Side


def update_lock(
    path: Path, site: Path | None, upgrade: Collection[str] | None, store: Store, *, tools: str = ""
) -> tuple[LockFile | None, LockFile]:
    """Resolve a recipe and write its lock; returns the lock before (None without one) and after.

    The layers of a base from a registry go into the store, for what is in them decides what is to be added.
    """
    # Here and not on top: `check` and `plan` look nothing up, and have half a second.
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.site import detect

    recipe, inputs = read_recipe(path)
    lock_path = locks.path_for(path)
    previous = lockfile.read(lock_path) if lock_path.exists() else None
    with located(path, recipe.name):
        bases = _bases(recipe, inputs, site, store, previous=previous, upgrade=upgrade)
        surroundings = detect(site, distribution=_distribution(recipe, bases), tools=tools)
        made = learn(make_locks(recipe, surroundings, previous, upgrade, bases), store, previous)
    if made != previous:
        lockfile.write(made, lock_path)
    return previous, made


def update_pins(
    path: Path, site: Path | None, store: Store, *, write: bool, tools: str = ""
) -> tuple[Side, Side, dict[str, tuple[str, str]]]:
    """Move a recipe's pins to the newest that fit together, and lock again.

    Args:
        path: the recipe; it and its lock are rewritten, comments and order stay.
        site: a site file, or None.
        store: tells of layers that were made already.
        write: False only looks.
        tools: where apt runs: see `site.detect`.

    Returns:
        The image before and after, and of each pin that moves its old and its new value.

    Raises:
        ConflictError: nothing fits together.
        InputError: the recipe is wrong, or writes a pin in a way that cannot be edited.

    """
    from imagebuilder import diff
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.resolve.newest import newest_for_all
    from imagebuilder.site import detect

    recipe, file = read_locks(path)
    with located(path, recipe.name):
        bases = _bases(recipe, {}, site, store, previous=file, upgrade=None)
        surroundings = detect(site, distribution=_distribution(recipe, bases), tools=tools)
        pins = newest_for_all(recipe, file, surroundings, bases)
    moved = {name: (recipe.pins[name], new) for name, new in pins.items() if recipe.pins[name] != new}
    text = recipes.with_pins(path, moved)
    updated = recipe.model_copy(update={"pins": pins})
    made = learn(make_locks(updated, surroundings, file, (), bases), store, file)
    before = diff.of_plans(str(path), [(lock, plan_of(recipe, lock)) for lock in file.sections], store)
    after = diff.of_plans(
        f"{path} (updated)", [(lock, plan_of(updated, lock)) for lock in made.sections], store
    )
    if write:
        if moved:
            textfile.write(path, text)
        if made != file:
            lockfile.write(made, locks.path_for(path))
    return before, after, moved


def lock_changes(previous: LockFile | None, made: LockFile) -> list[str]:
    """Name what moved: all pins of a first lock, later only the packages that changed; and what is forced.

    Of several platforms each has lines of its own, for what differs between them; what does not is told once.
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
    return [*lines, *(f"{name} is gone" for name in gone)]


def lock_notes(path: Path, made: LockFile) -> list[str]:
    """Say what holds together in a lock, and is worth knowing of it."""
    recipe, _ = read_recipe(path)
    return list(dict.fromkeys(note for lock in made.sections for note in facts.notes(recipe, lock.pins)))


def _bases(
    recipe: Recipe,
    inputs: Mapping[str, str],
    site: Path | None,
    store: Store,
    *,
    previous: LockFile | None,
    upgrade: Collection[str] | None,
) -> dict[str, Base]:
    """Look the base of each platform up where it is an image and something is to be resolved.

    That of the lock stays, unless everything or it may move.
    """
    from imagebuilder.bases import read
    from imagebuilder.site import detect

    found: dict[str, Base] = {}
    if recipe.image is None:
        return found
    moves = upgrade is not None and (not upgrade or "base" in upgrade)
    for name in recipe.platforms:
        lock = previous.section(name) if previous else None
        if lock is not None and lock.inputs == inputs.get(name) and upgrade is None:
            continue
        before = lock.image if lock else None
        if before is not None and (moves or before.name != recipe.image.name):
            before = None
        found[name] = read.read(recipe.image, platforms.architecture(name), detect(site), store, before)
    return found


def _distribution(recipe: Recipe, bases: Mapping[str, Base]) -> str:
    """Name the distribution, whose mirrors on this host count; a base tells its own."""
    return next((base.system.distribution for base in bases.values()), recipe.distribution)


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
