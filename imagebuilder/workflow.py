"""What several verbs need: from the path or name that a person typed to recipe, lock, plan and image."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from imagebuilder import catalog
from imagebuilder import lock as locks
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.errors import InputError, LockError, StoreError
from imagebuilder.lock import Lock
from imagebuilder.plan import Plan
from imagebuilder.recipe import Recipe
from imagebuilder.resolve.request import request
from imagebuilder.rootfs import image_files
from imagebuilder.store import ImageRecord, Store


def read_recipe(path: Path) -> tuple[Recipe, str]:
    """Read a recipe, and the checksum that its lock must carry."""
    recipe = recipes.load(path, catalog.names())
    return recipe, request(recipe).checksum(recipe)


def read_plan(path: Path) -> tuple[Lock, Plan]:
    """Read a recipe and its lock, and lay out the image.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, or it is out of step.

    """
    recipe, inputs = read_recipe(path)
    lock = locks.read(locks.path_for(path))
    locks.require_in_step(lock, inputs, path)
    return lock, plans.plan(recipe, lock, image_files(recipe, plans.environment(recipe)))


def update_lock(path: Path, site: Path | None, upgrade: Collection[str] | None) -> tuple[Lock | None, Lock]:
    """Resolve a recipe and write its lock; returns the lock before (None without one) and after."""
    # Here and not on top: `check` and `plan` look nothing up, and have half a second.
    from imagebuilder.resolve.locking import make_lock
    from imagebuilder.site import detect

    recipe, _ = read_recipe(path)
    lock_path = locks.path_for(path)
    previous = locks.read(lock_path) if lock_path.exists() else None
    made = make_lock(recipe, detect(site, distribution=recipe.distribution), previous, upgrade)
    if made != previous:
        locks.write(made, lock_path)
    return previous, made


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


def _versions(lock: Lock) -> dict[str, str]:
    debs = {deb.name: deb.version for deb in lock.debs}
    return debs | {wheel.name: wheel.version for wheel in lock.wheels}


def built_image(target: str, store: Store) -> ImageRecord | None:
    """Find the image that a recipe or a name stands for; None where it is neither (it may be an engine's).

    Raises:
        LockError: the recipe changed since its image was built, or it was never built.

    """
    path = Path(target)
    if path.suffix not in {".yaml", ".yml"}:
        return store.image(target) if recipes.is_name(target) else None
    lock, plan = read_plan(path)
    image = store.image(plan.name)
    if image is None:
        raise LockError("its image was not built yet", where=target, hint=f"run: imagebuilder build {target}")
    if image.lock != lock.checksum:
        raise LockError(
            "the image in the store was built from another state of the lock",
            where=target,
            hint=f"run: imagebuilder build {target}",
        )
    return image


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
