"""What a person means by a word in a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import lockfile
from imagebuilder import recipe as recipes
from imagebuilder.errors import InputError
from imagebuilder.store import Store
from imagebuilder.workflow.images import labels
from imagebuilder.workflow.plans_of import read_plans

if TYPE_CHECKING:
    from imagebuilder.diff import Side


def side(text: str, store: Store) -> Side:
    """Find what a person means by a recipe, a lock or an image of the store, for a comparison.

    Raises:
        InputError: it is none of these.
        LockError: a recipe without a lock, or out of step with it.

    """
    from imagebuilder import diff  # late: only a comparison needs it

    path = Path(text)
    if path.suffix in {".yaml", ".yml"}:
        return diff.of_plans(text, read_plans(path), store)
    if path.suffix == ".lock":
        return diff.of_locks(text, lockfile.read(path).sections)
    found = store.images(text) if recipes.is_name(text) else ()
    if not found:
        raise InputError(
            f"`{text}` is not an image in the store",
            where="imagebuilder diff",
            hint="give a recipe (.yaml), a lock (.lock), or a name that `imagebuilder cache ls` lists",
        )
    return diff.of_images(text, [(image, labels(image, store)) for image in found])
