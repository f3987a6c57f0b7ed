"""Lock a recipe, and report what changed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import recipe as recipes
from imagebuilder.catalog import Selection, limits, own
from imagebuilder.core import files, platforms
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import ConflictError, ImagebuilderError, InputError, LockError, Problem
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.resolve import basefit, filepins
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from imagebuilder.workflow.plans import layer_keys, plan_of, read_locks, read_recipe, require_agreement

if TYPE_CHECKING:
    from imagebuilder.bases.read import Base
    from imagebuilder.image.diff import Side

log = logging.getLogger(__name__)

# Names the Debian packages among the pins that an update is limited to.
_DEBIAN = "debian"


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
    add. Catalog files of the site are copied into the recipe's folder.
    """
    from imagebuilder.host.site import detect

    with own.borrowed(path, detect(site).catalog if site else None) as copies:
        made = _update_lock(path, site, upgrade, store, tools)
    return replace(made, notes=(*copies, *made.notes))


def _update_lock(
    path: Path, site: Path | None, upgrade: Collection[str] | None, store: Store, tools: str
) -> LockUpdate:
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
    made = make_locks(selection, surroundings, previous, upgrade, bases)
    made = learn(made, layer_keys(selection, made), store, previous)
    _require_named(selection, made)
    if made != previous:
        lockfile.write(made, lock_path)
    notes = dict.fromkeys(
        note
        for lock in made.sections
        for note in limits.notes(selection, lock.pins, basefit.older_drivers(selection, lock.image) or ())
    )
    for name, lock in zip(made.platforms, made.sections, strict=True):
        notes |= dict.fromkeys(filepins.notes(request(selection, name), lock))
    return LockUpdate(previous=previous, made=made, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Updated:
    """The result of an update.

    Attributes:
        before, after: the image.
        moved: old and new value of each pin that moves.
        left: the other pins, each with the reason.

    """

    before: Side
    after: Side
    moved: dict[str, tuple[str, str]]
    left: dict[str, str]


def update_pins(
    path: Path,
    site: Path | None,
    store: Store,
    *,
    write: bool,
    tools: str = "",
    only: Collection[str] = (),
    patch: bool = False,
) -> Updated:
    """Move a recipe's pins to the newest versions that work together, and lock again.

    Args:
        path: the recipe; it is rewritten with its lock, and keeps comments and order.
        site: a site file, or None.
        store: knows layers that were already made.
        write: False changes no files.
        tools: where apt runs: see `site.detect`.
        only: the pins to move, and `debian` for the Debian packages; all if empty.
        patch: move pins within their first two numbers.

    Raises:
        ConflictError: no versions work together.
        InputError: the recipe is wrong, has a pin in a form that cannot be edited, or has no such pin.

    """
    from imagebuilder.host.site import detect
    from imagebuilder.image import diff
    from imagebuilder.layers.hints import learn
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.resolve.newest import Moves, newest_for_all

    read = read_locks(path)
    selection, file, project = read.selection, read.file, read.copied.project
    _require_pinned(only, selection)
    moves = Moves(only=frozenset(only) if only else None, patch=patch)
    bases = _bases(selection, {}, site, store, previous=file, upgrade=None)
    surroundings = detect(site, distribution=_distribution(selection, bases), tools=tools)
    pins = newest_for_all(selection, file, surroundings, bases, moves)
    was = selection.recipe.pins
    moved = {name: (was[name], new) for name, new in pins.items() if was[name] != new}
    text = recipes.with_pins(path, moved)
    updated = selection.with_pins(pins)
    made = make_locks(updated, surroundings, file, _packages_to_move(only, file), bases)
    made = learn(made, layer_keys(updated, made), store, file)
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
    stayed = f"the newest {'patch release ' if patch else ''}that works with the other pins"
    left = {
        name: moves.stays(name, selection.recipe) or f"{stayed}, within {moves.loosened(value)}"
        for name, value in was.items()
        if name not in moved
    }
    return Updated(before=before, after=after, moved=moved, left=left)


def _require_pinned(names: Collection[str], selection: Selection) -> None:
    """Refuse to move only what the recipe does not have."""
    known = [*selection.recipe.pins, _DEBIAN]
    for name in names:
        if name not in known:
            raise InputError(
                f"`{printable(name)}` is not a pin of {selection.recipe.name}",
                where="--only",
                hint=f"give one of {', '.join(known)}",
            )


def _packages_to_move(only: Collection[str], file: LockFile) -> Collection[str] | None:
    """Return the pins and packages to move, as `make_locks` takes them."""
    if not only:
        return ()
    debs = {deb.name for lock in file.sections for deb in lock.debs} if _DEBIAN in only else set[str]()
    return {*only, *debs} - {_DEBIAN} or None


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

    recipe, places = recipes.read(path, own.names(path))
    components = own.load(path, recipe.pins)
    # Some problems, such as pins that exclude each other, are found with and without the missing pin.
    found = dict.fromkeys((*error.problems, *hidden_clashes(recipe, places, components, detect(site))))
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
        every = sorted(old.keys() | new.keys())
        kinds = Counter(name for name, _ in every)
        lines = [
            f"{name}{f' ({kind})' if kind == 'source' or kinds[name] > 1 else ''} "
            f"{old.get((name, kind), '(none)')} -> {new.get((name, kind), '(gone)')}"
            for name, kind in every
            if old.get((name, kind)) != new.get((name, kind))
        ]
    lines += [
        f"override: {item.pin} {item.locked}, though {against}"
        for item in made.overrides
        for against in item.contradicts
    ]
    return lines


def _versions(lock: Lock) -> dict[tuple[str, str], str]:
    """Return the version of everything in a lock, by name and kind: a wheel is not the Debian package."""
    return {
        **({("base", "image"): lock.image.digest} if lock.image else {}),
        **{(deb.name, "Debian"): deb.version for deb in lock.installed},
        **{(source.name, "source"): source.version for source in lock.sources},
        **{(wheel.name, "wheel"): wheel.version for wheel in lock.wheels},
    }
