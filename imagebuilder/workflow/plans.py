"""From a recipe's path to recipe, locks and plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.catalog import Selection, limits
from imagebuilder.core import platforms
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import NO_PROJECT, Plan, Project
from imagebuilder.plan.rootfs import image_files
from imagebuilder.resolve import agreement
from imagebuilder.resolve.request import Request, request

if TYPE_CHECKING:
    from imagebuilder.workflow.project import Copied


@dataclass(frozen=True, kw_only=True)
class LockedRecipe:
    """A recipe and its locks, read once, and found in step with each other.

    Attributes:
        path: the recipe's.
        selection: the recipe, with its components.
        file: the lock of each platform.

    """

    path: Path
    selection: Selection
    file: LockFile

    @cached_property
    def copied(self) -> Copied:
        """What the recipe copies, as it is when it is first asked for.

        Raises:
            InputError: a folder is not there, or holds what cannot be copied.

        """
        # Late: most recipes copy nothing.
        from imagebuilder.workflow.project import read_project

        return read_project(self.path, self.selection)

    def plans(self, platform: str = "", project: Project | None = None) -> tuple[tuple[Lock, Plan], ...]:
        """Lay out the image of each platform, or of the one that is named.

        Args:
            platform: its name; "" for all.
            project: the user's own files, where they are known; else they are read.

        Raises:
            InputError: the recipe is not for that platform, or a folder that it copies cannot be read.

        """
        require_platform(platform, self.file.platforms, str(self.path))
        if project is None:
            project = self.copied.project if _has_files(self.selection) else NO_PROJECT
        return tuple(
            (lock, plan_of(self.selection, lock, project))
            for name, lock in zip(self.file.platforms, self.file.sections, strict=True)
            if platform in {"", name}
        )

    def request(self, platform: str) -> Request:
        """Put together what the recipe asks of the resolvers, for one of its platforms."""
        return request(self.selection, platform)


def _has_files(selection: Selection) -> bool:
    """Tell whether the image holds files of the user's own."""
    return bool(selection.recipe.copies or selection.recipe.package)


def _with_package(selection: Selection, folder: Path, recorded: LockFile | None = None) -> Selection:
    """Read what the user's package says of itself; where its files are not at hand, the lock says it."""
    asked = selection.recipe.package
    if asked is None:
        return selection
    # Late: most recipes have none.
    from imagebuilder.layers.project import find
    from imagebuilder.recipe import pyproject

    if recorded is not None:
        found = next((section.project for section in recorded.sections if section.project), None)
        return (
            selection
            if found is None
            else replace(selection, package=pyproject.recorded(found.name, found.requires, found.needs))
        )
    place = selection.places.of("project")
    return replace(selection, package=pyproject.read(find(folder, asked.source, place), asked, place))


def read_recipe(path: Path, recorded: LockFile | None = None) -> tuple[Selection, Mapping[str, str]]:
    """Read a recipe, choose its components, and give the checksum that each platform's lock must carry.

    Args:
        path: the recipe.
        recorded: the lock that came with a recipe without the user's files: it says what these asked for.

    Raises:
        InputError: the recipe or the pyproject.toml of the user's package is wrong.

    """
    selection = _with_package(catalog.select(*recipes.read(path, catalog.names())), path.parent, recorded)
    return selection, {name: request(selection, name).checksum() for name in selection.recipe.platforms}


def read_request(path: Path, platform: str) -> Request:
    """Read what a recipe that came with an image and its lock asks of the resolvers, for one platform."""
    selection, _ = read_recipe(path, lockfile.read(locks.path_for(path)))
    return request(selection, platform)


def check_recipe(path: Path, *, locked: bool = False) -> None:
    """Look at a recipe, and its lock where there is one, without a network.

    Args:
        path: the recipe.
        locked: whether a missing lock is an error.

    Raises:
        InputError: a file is wrong.
        ConflictError: pins that cannot go together, as far as the catalog knows.
        LockError: the lock is out of step, or missing where it must not be.

    """
    if locked or locks.path_for(path).exists():
        read_plans(path)
        return
    selection, _ = read_recipe(path)
    limits.require(selection, {})
    if _has_files(selection):
        from imagebuilder.workflow.project import read_project

        read_project(path, selection)


def read_locks(path: Path, *, travelled: bool = False) -> LockedRecipe:
    """Read a recipe and its locks, and choose the recipe's components.

    Args:
        path: the recipe.
        travelled: whether both came with an image, and so without the user's own files.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, it is out of step, or it is not what the recipe asks for.

    """
    place = locks.path_for(path)
    selection, inputs = read_recipe(path, lockfile.read(place) if travelled else None)
    file = lockfile.read(place)
    lockfile.require_in_step(file, inputs, path)
    require_agreement(selection, file, path)
    for section in file.sections:
        limits.require(selection, section.pins)
    return LockedRecipe(path=path, selection=selection, file=file)


def require_agreement(selection: Selection, file: LockFile, path: Path) -> None:
    """Refuse locks that are not what their recipe asks for, whatever checksum they carry.

    Raises:
        LockError: everything that differs, on all platforms.

    """
    problems: list[Problem] = []
    place = str(locks.path_for(path))
    for name, section in zip(file.platforms, file.sections, strict=True):
        try:
            agreement.require(selection, section, f"{place}: platforms.{name}")
        except LockError as error:
            problems += error.problems
    if problems:
        raise LockError.of(problems)


def read_plans(
    path: Path, platform: str = "", project: Project | None = None, *, travelled: bool = False
) -> tuple[tuple[Lock, Plan], ...]:
    """Read a recipe and its locks, and lay out the image of each platform, or of the one that is named.

    Args:
        path: the recipe.
        platform: its name; "" for all.
        project: the user's own files, where they are known; else they are read.
        travelled: whether recipe and lock came with an image.

    Raises:
        InputError: a file is wrong, or the recipe is not for that platform.
        LockError: there is no lock, or it is out of step.

    """
    return read_locks(path, travelled=travelled).plans(platform, project)


def read_plan(
    path: Path, platform: str = "", project: Project | None = None, *, travelled: bool = False
) -> tuple[Lock, Plan]:
    """Read a recipe and its lock, and lay out the image for one platform: that of the recipe if it has one.

    Raises:
        InputError: a file is wrong, or which platform is meant is not said.
        LockError: there is no lock, or it is out of step.

    """
    found = read_plans(path, platform, project, travelled=travelled)
    if len(found) > 1:
        names = " or ".join(plan.platform for _, plan in found)
        raise InputError(
            "is for several platforms", where=str(path), hint=f"name one with --platform: {names}"
        )
    return found[0]


def require_platform(platform: str, known: Collection[str], where: str) -> None:
    """Refuse an unknown platform, or one that is not among these; "" stands for all.

    Raises:
        InputError: with those that there are.

    """
    if platform and platforms.check(platform) not in known:
        raise InputError(
            f"is not for {platform}", where=where, hint=f"it is for {' and '.join(sorted(known))}"
        )


def plan_of(selection: Selection, lock: Lock, project: Project = NO_PROJECT) -> Plan:
    """Lay out the image of a recipe and its lock, with the image's own files."""
    files = image_files(selection.recipe, plans.environment(selection, lock))
    return plans.plan(selection, lock, files, project)
