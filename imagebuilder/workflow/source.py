"""The recipe and the lock of an image, as text: what anybody needs to make it again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.core import files
from imagebuilder.errors import InputError
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import Lock
from imagebuilder.plan import NO_PROJECT, Plan, Project, index_tags
from imagebuilder.recipe import NotSecret
from imagebuilder.resolve.request import Request
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import named, read_locks, read_plan

_LIMIT = 32_000_000


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """Both texts, as they stood when the image was built."""

    recipe: str
    lock: str

    def read(self, platform: str = "", project: Project = NO_PROJECT) -> tuple[Lock, Plan]:
        """Read both, as `build` does, for one platform: that of the recipe if it has only one.

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
        """Read what the recipe asks of the resolvers, for one platform.

        Raises:
            InputError: the recipe is wrong.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            return read_locks(self._write(Path(name)), travelled=True).request(platform)

    def tags(self) -> tuple[str, ...]:
        """Name the tags of what joins the images of all platforms.

        Raises:
            InputError: one of them is wrong, or no tag is right for all platforms.
            LockError: they are not in step with each other, or with this version's catalog.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            read = read_locks(self._write(Path(name)), travelled=True)
            return index_tags(read.selection, read.file)

    def not_secret(self) -> tuple[NotSecret, ...]:
        """Read which files the recipe says hold nothing secret.

        Raises:
            InputError: the recipe is wrong.

        """
        with tempfile.TemporaryDirectory(prefix="imagebuilder-") as name:
            return recipes.load(self._write(Path(name)), catalog.names()).not_secret

    def _write(self, folder: Path) -> Path:
        path = folder / "recipe.yaml"
        path.write_text(self.recipe, encoding="utf-8")
        locks.path_for(path).write_text(self.lock, encoding="utf-8")
        return path


def of_recipe(recipe: Path) -> RecipeSource:
    """Read the texts that a recipe's path leads to; the lock without what builds add to it.

    Raises:
        InputError: one of them cannot be read.

    """
    place = locks.path_for(recipe)
    file = lockfile.loads(_text(place), str(place))
    return RecipeSource(recipe=_text(recipe), lock=lockfile.dumps(file.plain))


def find(target: str, image: ImageRecord, store: Store) -> RecipeSource:
    """Find the source of an image that a person named by its recipe's path, or by its own name.

    What the store kept at the build comes first: the recipe may have changed since.

    Raises:
        InputError: the store does not know it, or a file cannot be read.

    """
    word = named(target)
    if word.is_recipe and not store.source(image.manifest).exists():
        return of_recipe(word.path)
    return recall(store, image)


def remember(store: Store, digest: str, source: RecipeSource) -> None:
    """Keep the source of an image beside it, for a push that names the image and not the recipe."""
    text = json.dumps({"recipe": source.recipe, "lock": source.lock}, ensure_ascii=False)
    with store.in_use():
        files.write(store.source(digest), f"{text}\n")


def recall(store: Store, image: ImageRecord) -> RecipeSource:
    """Find the source of an image in the store.

    Raises:
        InputError: the store has none, or what it has is damaged.

    """
    path = store.source(image.manifest)
    hint = "give the recipe in place of the image's name, or build it again"
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
            raise InputError("is far too large", where=str(path))
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
