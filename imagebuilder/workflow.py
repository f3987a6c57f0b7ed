"""What several verbs need: from the path or name that a person typed to recipe, lock, plan and image."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from imagebuilder import catalog, diff, oci, textfile
from imagebuilder import lock as locks
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.diff import Side
from imagebuilder.errors import InputError, LockError, StoreError
from imagebuilder.located import located
from imagebuilder.lock import Lock
from imagebuilder.plan import Plan
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import facts
from imagebuilder.resolve.request import request
from imagebuilder.rootfs import image_files
from imagebuilder.store import ImageRecord, Store


def read_recipe(path: Path) -> tuple[Recipe, str]:
    """Read a recipe, and the checksum that its lock must carry."""
    recipe = recipes.load(path, catalog.names())
    with located(path, recipe.name):
        return recipe, request(recipe).checksum(recipe)


def check_recipe(path: Path) -> None:
    """Look at a recipe, and its lock where there is one, without a network.

    Raises:
        InputError: a file is wrong.
        ConflictError: pins that cannot go together, as far as the catalog knows.
        LockError: the lock is out of step.

    """
    if locks.path_for(path).exists():
        read_plan(path)
        return
    recipe, _ = read_recipe(path)
    with located(path, recipe.name):
        facts.require(recipe, {})


def read_plan(path: Path) -> tuple[Lock, Plan]:
    """Read a recipe and its lock, and lay out the image.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, or it is out of step.

    """
    recipe, inputs = read_recipe(path)
    lock = locks.read(locks.path_for(path))
    locks.require_in_step(lock, inputs, path)
    with located(path, recipe.name):
        facts.require(recipe, lock.pins)
    return lock, plans.plan(recipe, lock, image_files(recipe, plans.environment(recipe)))


def update_lock(path: Path, site: Path | None, upgrade: Collection[str] | None) -> tuple[Lock | None, Lock]:
    """Resolve a recipe and write its lock; returns the lock before (None without one) and after."""
    # Here and not on top: `check` and `plan` look nothing up, and have half a second.
    from imagebuilder.resolve.locking import make_lock
    from imagebuilder.site import detect

    recipe, _ = read_recipe(path)
    lock_path = locks.path_for(path)
    previous = locks.read(lock_path) if lock_path.exists() else None
    with located(path, recipe.name):
        made = make_lock(recipe, detect(site, distribution=recipe.distribution), previous, upgrade)
    if made != previous:
        locks.write(made, lock_path)
    return previous, made


def update_pins(
    path: Path, site: Path | None, store: Store, *, write: bool
) -> tuple[Side, Side, dict[str, tuple[str, str]]]:
    """Move a recipe's pins to the newest that fit together, and lock again.

    Args:
        path: the recipe; it and its lock are rewritten, comments and order stay.
        site: a site file, or None.
        store: tells of layers that were made already.
        write: False only looks.

    Returns:
        The image before and after, and of each pin that moves its old and its new value.

    Raises:
        ConflictError: nothing fits together.
        InputError: the recipe is wrong, or writes a pin in a way that cannot be edited.

    """
    from imagebuilder.resolve import debian
    from imagebuilder.resolve.locking import make_lock
    from imagebuilder.resolve.newest import newest_pins
    from imagebuilder.site import detect

    recipe, _ = read_recipe(path)
    lock, plan = read_plan(path)
    surroundings = detect(site, distribution=recipe.distribution)
    with located(path, recipe.name):
        pins = newest_pins(recipe, debian.glibc(lock.debs), surroundings)
    moved = {name: (recipe.pins[name], new) for name, new in pins.items() if recipe.pins[name] != new}
    text = recipes.with_pins(path, moved)
    updated = recipe.model_copy(update={"pins": pins})
    made = make_lock(updated, surroundings, lock, ())
    planned = plans.plan(updated, made, image_files(updated, plans.environment(updated)))
    if write:
        if moved:
            textfile.write(path, text)
        if made != lock:
            locks.write(made, locks.path_for(path))
    before = diff.of_plan(str(path), lock, plan, store)
    return before, diff.of_plan(f"{path} (updated)", made, planned, store), moved


def side(text: str, store: Store) -> Side:
    """Find what a person means by a recipe, a lock or an image of the store, for a comparison.

    Raises:
        InputError: it is none of these.
        LockError: a recipe without a lock, or out of step with it.

    """
    path = Path(text)
    if path.suffix in {".yaml", ".yml"}:
        lock, plan = read_plan(path)
        return diff.of_plan(text, lock, plan, store)
    if path.suffix == ".lock":
        return diff.of_lock(text, locks.read(path))
    image = store.image(text) if recipes.is_name(text) else None
    if image is None:
        raise InputError(
            f"`{text}` is not an image in the store",
            where="imagebuilder diff",
            hint="give a recipe (.yaml), a lock (.lock), or a name that `imagebuilder cache ls` lists",
        )
    return diff.of_image(text, image, labels(image, store))


def lock_changes(previous: Lock | None, made: Lock) -> list[str]:
    """Name what moved: all pins of a first lock, later only the packages that changed; and what is forced."""
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


def lock_notes(path: Path, made: Lock) -> list[str]:
    """Say what holds together in a lock, and is worth knowing of it."""
    recipe, _ = read_recipe(path)
    return facts.notes(recipe, made.pins)


def _versions(lock: Lock) -> dict[str, str]:
    debs = {deb.name: deb.version for deb in lock.debs}
    debs |= {f"{source.name} (source)": source.version for source in lock.sources}
    return debs | {wheel.name: wheel.version for wheel in lock.wheels}


def built_image(target: str, store: Store) -> ImageRecord | None:
    """Find the image that a recipe or a name stands for; None where it is neither (it may be an engine's).

    Raises:
        LockError: the recipe changed since its image was built, or it was never built.

    """
    image = last_image(target, store)
    require_in_step(target, store)
    return image


def last_image(target: str, store: Store) -> ImageRecord | None:
    """Find the last image that was built of a recipe or a name, whatever the recipe says by now.

    Raises:
        LockError: the recipe's was never built.

    """
    path = Path(target)
    if not is_recipe(target):
        return store.image(target) if recipes.is_name(target) else None
    image = store.image(recipes.load(path, catalog.names()).name)
    if image is None:
        raise LockError("its image was not built yet", where=target, hint=f"run: imagebuilder build {target}")
    return image


def require_in_step(target: str, store: Store) -> None:
    """Refuse where the image in the store is not what its recipe and lock say now; a name has no recipe.

    Raises:
        LockError: the lock is out of step with the recipe, or the image with either.

    """
    if not is_recipe(target):
        return
    lock, plan = read_plan(Path(target))
    image = store.image(plan.name)
    reason = ""
    if image is None:
        reason = "its image was not built yet"
    elif image.lock != lock.checksum:
        reason = "the image in the store was built from another state of the lock"
    elif image.tags != plan.tags or not oci.is_image_of(plan, image, store):
        reason = "the image in the store was built from another state of the recipe"
    if reason:
        raise LockError(reason, where=target, hint=f"run: imagebuilder build {target}")


def is_recipe(target: str) -> bool:
    """Tell whether a word names a recipe's file, not an image."""
    return target.endswith((".yaml", ".yml"))


def labels(image: ImageRecord, store: Store) -> Mapping[str, str]:
    """Read an image's labels from its config blob."""
    try:
        config = json.loads(store.blob(image.config).read_bytes())
        found = config["config"]["Labels"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the config of `{image.name}` cannot be read: {error}",
            where=str(store.blob(image.config)),
            hint="build it again",
        ) from error
    return {str(key): str(value) for key, value in found.items()}


def parse_size(text: str) -> int:
    """Read a number of bytes as people write it: `20GB`, `500 MB`, `0`. Decimal units, as disks are sold."""
    number, unit = text.strip().upper().removesuffix("B"), 1
    for letter, factor in (("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12)):
        if number.endswith(letter):
            number, unit = number[:-1], factor
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not 0 <= size < 10**9:
        raise InputError(f"`{text}` is not a size", where="--keep", hint="write it as in 20GB")
    return int(size * unit)
