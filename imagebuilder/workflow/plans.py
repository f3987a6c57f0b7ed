"""Read a recipe, its locks and its plans from its path."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.catalog import Selection, limits, own
from imagebuilder.core import platforms
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import NO_PROJECT, Entry, Plan, Project
from imagebuilder.plan.rootfs import image_files
from imagebuilder.recipe import Places, Recipe
from imagebuilder.recipe.compiled import MOST_PATCH_BYTES
from imagebuilder.resolve import agreement, basefit, filepins
from imagebuilder.resolve.request import Request, request

if TYPE_CHECKING:
    from imagebuilder.recipe.requirements import FileDemands, Package
    from imagebuilder.workflow.project import Copied


@dataclass(frozen=True, kw_only=True)
class LockedRecipe:
    """A recipe and its locks, which match each other.

    Attributes:
        path: of the recipe.
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
        """Plan the image of each platform, or of the named one.

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

    @property
    def layer_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the layers that each lock gives."""
        return layer_keys(self.selection, self.file)

    def request(self, platform: str) -> Request:
        """Return the recipe's request to the resolvers, for one platform."""
        return request(self.selection, platform)


def _has_files(selection: Selection) -> bool:
    """Return whether the recipe names files of the user's own: for the image, or to test it."""
    recipe = selection.recipe
    return bool(recipe.copies or recipe.package or recipe.checks.tests)


def read_recipe(path: Path, recorded: LockFile | None = None) -> tuple[Selection, Mapping[str, str]]:
    """Read a recipe, select its components, and return the checksum that each platform's lock must have.

    Args:
        path: the recipe.
        recorded: the lock that came with the recipe from an image. The content of requirement files, and of
            the package's pyproject.toml, is then taken from this lock: the files would be of this host.

    Raises:
        InputError: the recipe or a requirement file is wrong.
        ConflictError: they contradict each other, as far as this is known without an index.

    """
    recipe, places = recipes.read(path, own.names(path))
    selection = replace(
        catalog.select(recipe, places, own.load(path, recipe.pins)),
        demands=_demands(recipe, path.parent, places, recorded),
        package=_package(recipe, path.parent, places, recorded),
        patches=_patches(recipe, path.parent, places, recorded),
    )
    requests = {name: request(selection, name) for name in recipe.platforms}
    filepins.require(requests.values())
    return selection, {name: wanted.checksum() for name, wanted in requests.items()}


def _package(recipe: Recipe, folder: Path, places: Places, recorded: LockFile | None) -> Package | None:
    if recipe.package is None:
        return None
    from imagebuilder.recipe import requirements  # late: most recipes have no package

    if recorded is not None:
        found = next((section.project for section in recorded.sections if section.project), None)
        return requirements.Package(name=found.name, requires=found.requires) if found else None
    return requirements.read_package(folder, recipe.package.file, places.of("project"))


def _patches(recipe: Recipe, folder: Path, places: Places, recorded: LockFile | None) -> Mapping[str, str]:
    """Read the recipe's patches; those of a recipe from an image are in its lock."""
    if recorded is not None:
        builds = [build for section in recorded.sections for build in section.builds if build.compiled]
        locked = [patch for build in builds if build.compiled for patch in build.compiled.patches]
        return {patch.file: patch.text for patch in locked}
    found = {}
    for index, entry in enumerate(recipe.compiled):
        for number, patch in enumerate(entry.patches):
            from imagebuilder.recipe.requirements.source import open_text  # late: most recipes have no patch

            place = places.of("compile", index, "patches", number)
            text = open_text(folder, patch.file, place).text
            if len(text) > MOST_PATCH_BYTES:
                hint = "is this the right file?"
                raise InputError(f"`{patch.file}` is far too large for a patch", where=place, hint=hint)
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest != patch.sha256:
                raise InputError(
                    f"`{patch.file}` is not the patch that the recipe names: its sha256 is {digest}",
                    where=place,
                    hint="read the file; if it is right, write this sha256",
                )
            found[patch.file] = text
    return found


def _demands(
    recipe: Recipe, folder: Path, places: Places, recorded: LockFile | None
) -> Mapping[str, tuple[FileDemands, ...]]:
    if not recipe.requirement_files:
        return {}
    from imagebuilder.recipe import requirements  # late: most recipes name no such file

    if recorded is not None:
        return {
            name: tuple(
                requirements.FileDemands.recorded(item.file, item.asked, item.limits)
                for item in section.requirements
            )
            for name, section in zip(recorded.platforms, recorded.sections, strict=True)
        }
    return {
        name: requirements.read(
            recipe,
            folder,
            places,
            agreement.environment(recipe.python_minor, platforms.architecture(name)),
        )
        for name in recipe.platforms
    }


def check_recipe(path: Path, *, locked: bool = False) -> Copied:
    """Check a recipe, and its lock if there is one, without a network. Returns what the recipe copies.

    Args:
        path: the recipe.
        locked: whether a missing lock is an error.

    Raises:
        InputError: a file is wrong.
        ConflictError: pins cannot work together, as far as the catalog knows.
        LockError: the lock is out of step, or missing although it is required.

    """
    if locked or locks.path_for(path).exists():
        read = read_locks(path)
        read.plans()
        return read.copied
    selection, _ = read_recipe(path)
    limits.require(selection, {}, basefit.older_drivers(selection, None))
    from imagebuilder.workflow.project import read_project  # late: it loads what most verbs do without

    return read_project(path, selection)


def read_locks(path: Path, *, travelled: bool = False) -> LockedRecipe:
    """Read a recipe and its locks, and select its components.

    Args:
        path: the recipe.
        travelled: whether both came from an image, so without the user's own files.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, it is out of step, or it is not what the recipe requests.

    """
    place = locks.path_for(path)
    selection, inputs = read_recipe(path, lockfile.read(place) if travelled else None)
    file = lockfile.read(place)
    _require_same_files(selection, file, path)
    lockfile.require_in_step(file, inputs, path)
    require_agreement(selection, file, path)
    for section in file.sections:
        limits.require(selection, section.pins, basefit.older_drivers(selection, section.image))
    return LockedRecipe(path=path, selection=selection, file=file)


def _require_same_files(selection: Selection, file: LockFile, path: Path) -> None:
    """Refuse locks that were made before a requirement file or a catalog file changed, and name the file."""
    recorded = selection.recorded
    changed = {
        str(own.place(path, name)): None
        for section in file.sections
        for name in sorted(recorded.keys() & section.catalog.keys())
        if section.catalog[name] != recorded[name]
    }
    changed |= {
        now.file: None
        for name, section in zip(file.platforms, file.sections, strict=True)
        for now, then in zip(selection.demands.get(name, ()), section.requirements, strict=False)
        if now.file == then.file and (now.asked, now.limits) != (then.asked, then.limits)
    }
    if changed:
        raise LockError.of(
            [
                Problem(
                    message=f"{name} asks for something else than when the recipe was locked",
                    where=str(locks.path_for(path)),
                    hint=f"run: imagebuilder lock {path}",
                )
                for name in changed
            ]
        )


def require_agreement(selection: Selection, file: LockFile, path: Path) -> None:
    """Refuse locks that do not match what their recipe requests, even if their checksum matches.

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
    """Read a recipe and its locks, and plan the image of each platform, or of the named one.

    Args:
        path: the recipe.
        platform: its name; "" for all.
        project: the user's own files, where they are known; else they are read.
        travelled: see `read_locks`.

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
        InputError: a file is wrong, or the recipe has several platforms and none is named.
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
    """Refuse an unknown platform, or one that is not among these; "" means all.

    Raises:
        InputError: lists the known platforms.

    """
    if platform and platforms.check(platform) not in known:
        raise InputError(
            f"is not for {platform}", where=where, hint=f"it is for {' and '.join(sorted(known))}"
        )


def plan_of(selection: Selection, lock: Lock, project: Project = NO_PROJECT) -> Plan:
    """Plan the image of a recipe and its lock, with the files that every image has."""
    return plans.plan(selection, lock, _image_files(selection, lock), project)


def layer_keys(selection: Selection, file: LockFile) -> tuple[tuple[str, ...], ...]:
    """Return the keys of the layers that each lock gives: all but those of the user's own files."""
    return tuple(
        tuple(layer.key for layer in plans.locked_layers(selection, lock, _image_files(selection, lock)))
        for lock in file.sections
    )


def _image_files(selection: Selection, lock: Lock) -> tuple[Entry, ...]:
    return image_files(selection.recipe, plans.environment(selection, lock))
