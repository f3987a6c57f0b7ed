"""From a recipe's path to recipe, locks and plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from imagebuilder import catalog, lockfile, platforms
from imagebuilder import lock as locks
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.errors import InputError
from imagebuilder.located import located
from imagebuilder.lock import Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.plan import Plan
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import facts
from imagebuilder.resolve.request import request
from imagebuilder.rootfs import image_files


def read_recipe(path: Path) -> tuple[Recipe, Mapping[str, str]]:
    """Read a recipe, and of each of its platforms the checksum that its lock must carry."""
    recipe = recipes.load(path, catalog.names())
    with located(path, recipe.name):
        return recipe, {name: request(recipe, name).checksum(recipe) for name in recipe.platforms}


def check_recipe(path: Path) -> None:
    """Look at a recipe, and its lock where there is one, without a network.

    Raises:
        InputError: a file is wrong.
        ConflictError: pins that cannot go together, as far as the catalog knows.
        LockError: the lock is out of step.

    """
    if locks.path_for(path).exists():
        read_plans(path)
        return
    recipe, _ = read_recipe(path)
    with located(path, recipe.name):
        facts.require(recipe, {})


def read_locks(path: Path) -> tuple[Recipe, LockFile]:
    """Read a recipe and its locks.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, or it is out of step.

    """
    recipe, inputs = read_recipe(path)
    file = lockfile.read(locks.path_for(path))
    lockfile.require_in_step(file, inputs, path)
    with located(path, recipe.name):
        for section in file.sections:
            facts.require(recipe, section.pins)
    return recipe, file


def read_plans(path: Path, platform: str = "") -> tuple[tuple[Lock, Plan], ...]:
    """Read a recipe and its locks, and lay out the image of each platform, or of the one that is named.

    Raises:
        InputError: a file is wrong, or the recipe is not for that platform.
        LockError: there is no lock, or it is out of step.

    """
    recipe, file = read_locks(path)
    require_platform(platform, file.platforms, str(path))
    return tuple(
        (lock, plan_of(recipe, lock))
        for name, lock in zip(file.platforms, file.sections, strict=True)
        if platform in {"", name}
    )


def read_plan(path: Path, platform: str = "") -> tuple[Lock, Plan]:
    """Read a recipe and its lock, and lay out the image for one platform: that of the recipe if it has one.

    Raises:
        InputError: a file is wrong, or which platform is meant is not said.
        LockError: there is no lock, or it is out of step.

    """
    found = read_plans(path, platform)
    if len(found) > 1:
        names = " or ".join(plan.platform for _, plan in found)
        raise InputError(
            "is for several platforms", where=str(path), hint=f"name one with --platform: {names}"
        )
    return found[0]


def require_platform(platform: str, known: Collection[str], where: str) -> None:
    """Refuse a platform that is none, or not one of these; "" stands for all.

    Raises:
        InputError: with those that there are.

    """
    if platform and platforms.check(platform) not in known:
        raise InputError(
            f"is not for {platform}", where=where, hint=f"it is for {' and '.join(sorted(known))}"
        )


def plan_of(recipe: Recipe, lock: Lock) -> Plan:
    """Lay out the image of a recipe and its lock, with the image's own files."""
    return plans.plan(recipe, lock, image_files(recipe, plans.environment(recipe, lock)))
