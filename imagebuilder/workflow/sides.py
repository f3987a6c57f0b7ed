"""The two sides of a comparison, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuilder.errors import InputError
from imagebuilder.lock import file as lockfile
from imagebuilder.store import Store
from imagebuilder.workflow.images import labels
from imagebuilder.workflow.named import named
from imagebuilder.workflow.plans import read_plans

if TYPE_CHECKING:
    from imagebuilder.image.diff import Side


def side(text: str, store: Store) -> Side:
    """Return the side of a comparison for a recipe, a lock or an image in the store.

    Raises:
        InputError: the argument is something else.
        LockError: a recipe has no lock, or one that is out of step.

    """
    from imagebuilder.image import diff  # late: only a comparison needs it

    word = named(text)
    if word.is_recipe:
        return diff.of_plans(text, read_plans(word.path), store)
    if word.kind == "lock":
        return diff.of_locks(text, lockfile.read(word.path).sections)
    found = word.images(store)
    if not found:
        raise InputError(
            f"`{text}` is not an image in the store",
            where="imagebuilder diff",
            hint="give a recipe (.yaml), a lock (.lock), or a name that `imagebuilder cache ls` lists",
        )
    return diff.of_images(text, [(image, labels(image, store)) for image in found])
