"""The recipe and the lock of an image as text: what is needed to build it again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import recipe as recipes
from imagebuilder.catalog import own
from imagebuilder.core import files
from imagebuilder.errors import InputError
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import Lock
from imagebuilder.plan import NO_PROJECT, Plan, Project, index_tags
from imagebuilder.recipe import Recipe
from imagebuilder.resolve.request import Request
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import named, read_locks, read_plan

_LIMIT = 32_000_000


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """Both texts, as they were when the image was built."""

    recipe: str
    lock: str

    def read(self, platform: str = "", project: Project = NO_PROJECT) -> tuple[Lock, Plan]:
        """Read both, as `build` does, for one platform, by default the recipe's only one.

        Args:
            platform: its name.
            project: the user's own files, as the image's labels have them: neither text does.

        Raises:
            InputError: one of them is wrong, or they are for other platforms.
            LockError: they are not in step with each other, or with this version's catalog.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            return read_plan(self._write(Path(name)), platform, project, travelled=True)

    def request(self, platform: str) -> Request:
        """Return the recipe's request to the resolvers, for one platform.

        Raises:
            InputError: the recipe is wrong.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            return read_locks(self._write(Path(name)), travelled=True).request(platform)

    def tags(self) -> tuple[str, ...]:
        """Return the tags of the index that joins the images of all platforms.

        Raises:
            InputError: one of them is wrong, or no tag is right for all platforms.
            LockError: they are not in step with each other, or with this version's catalog.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            read = read_locks(self._write(Path(name)), travelled=True)
            return index_tags(read.selection, read.file)

    def parsed(self) -> Recipe:
        """Return the recipe alone.

        Raises:
            InputError: it is wrong.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            path = self._write(Path(name))
            return recipes.load(path, own.names(path))

    def _write(self, folder: Path) -> Path:
        path = folder / "recipe.yaml"
        path.write_text(self.recipe, encoding="utf-8")
        locks.path_for(path).write_text(self.lock, encoding="utf-8")
        for section in lockfile.read(locks.path_for(path)).sections:
            own.write(path, section.catalog)
        return path


def of_recipe(recipe: Path) -> RecipeSource:
    """Read a recipe and its lock; the lock without the layers that builds add.

    Raises:
        InputError: one of them cannot be read.

    """
    place = locks.path_for(recipe)
    file = lockfile.loads(_text(place), str(place))
    return RecipeSource(recipe=_text(recipe), lock=lockfile.dumps(file.plain))


def find(target: str, image: ImageRecord, store: Store) -> RecipeSource:
    """Return the source of an image that the user named by its recipe's path, or by its own name.

    The store's copy from the build comes first, because the recipe may have changed since.

    Raises:
        InputError: the store does not know it, or a file cannot be read.

    """
    word = named(target)
    if word.is_recipe and not store.source(image.manifest).exists():
        return of_recipe(word.path)
    return recall(store, image)


def recipe_of(target: str, image: ImageRecord, store: Store) -> Recipe | None:
    """Return the recipe that a path names; for an image's name, the recipe as it was built, or None.

    Raises:
        InputError: the recipe is wrong.

    """
    word = named(target)
    if word.is_recipe:
        return recipes.load(word.path, own.names(word.path))
    return recall(store, image).parsed() if store.source(image.manifest).exists() else None


def remember(store: Store, digest: str, source: RecipeSource) -> None:
    """Store the source of an image beside it, for a push by the image's name."""
    text = json.dumps({"recipe": source.recipe, "lock": source.lock}, ensure_ascii=False)
    with store.in_use():
        files.write(store.source(digest), f"{text}\n")


def recall(store: Store, image: ImageRecord) -> RecipeSource:
    """Return the source of an image in the store.

    Raises:
        InputError: the store does not have it, or it is damaged.

    """
    path = store.source(image.manifest)
    hint = "give the recipe instead of the image's name, or build it again"
    try:
        found = json.loads(_text(path))
        return RecipeSource(recipe=str(found["recipe"]), lock=str(found["lock"]))
    except InputError:
        raise InputError(
            f"the store does not know which recipe {image.name} was built from", where=str(path), hint=hint
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"is damaged: {type(error).__name__}", where=str(path), hint=hint) from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
        if len(data) > _LIMIT:
            raise InputError("is too large", where=str(path))
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
