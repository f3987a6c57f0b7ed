"""Decide what an argument on the command line names, from its text alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagebuilder import recipe as recipes
from imagebuilder.store import ImageRecord, Store

Kind = Literal["recipe", "lock", "report", "image"]

_KINDS: dict[str, Kind] = {".yaml": "recipe", ".yml": "recipe", ".lock": "lock", ".json": "report"}


@dataclass(frozen=True, kw_only=True)
class Named:
    """What an argument names.

    Attributes:
        kind: a file, by its suffix; else an image, in the store, a local engine or a registry.
        text: the argument.

    """

    kind: Kind
    text: str

    @property
    def path(self) -> Path:
        """The argument as a path."""
        return Path(self.text)

    @property
    def is_recipe(self) -> bool:
        return self.kind == "recipe"

    @property
    def in_registry(self) -> bool:
        """Whether only a registry can have it, because names in the store have no slash."""
        return not self.is_recipe and "/" in self.text

    def images(self, store: Store) -> tuple[ImageRecord, ...]:
        """Return the store's images with this name, one for each platform; none for a recipe's path."""
        # The name of an image may end in .lock or .json.
        is_name = not self.is_recipe and recipes.is_name(self.text)
        return store.images(self.text) if is_name else ()


def named(text: str) -> Named:
    """Return what an argument names: `recipes/x.yaml`, `recipes/x.lock`, `report.json`, or an image."""
    kinds = (kind for end, kind in _KINDS.items() if text.endswith(end))
    return Named(kind=next(kinds, "image"), text=text)
