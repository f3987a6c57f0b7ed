"""What a word on the command line names, told from the word alone."""

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
    """What a word names.

    Attributes:
        kind: a file by the end of its name, else an image: of the store, of a local engine or of a registry.
        text: the word.

    """

    kind: Kind
    text: str

    @property
    def path(self) -> Path:
        """The word as a file."""
        return Path(self.text)

    @property
    def is_recipe(self) -> bool:
        return self.kind == "recipe"

    @property
    def in_registry(self) -> bool:
        """Whether only a registry can have it: names in the store have no slash."""
        return not self.is_recipe and "/" in self.text

    def images(self, store: Store) -> tuple[ImageRecord, ...]:
        """Find the store's images of this name, one for each platform; a recipe has none under its path."""
        # A name may end like a lock or a report.
        is_name = not self.is_recipe and recipes.is_name(self.text)
        return store.images(self.text) if is_name else ()


def named(text: str) -> Named:
    """Tell what a word names: `recipes/x.yaml`, `recipes/x.lock`, `report.json`, or an image."""
    kinds = (kind for end, kind in _KINDS.items() if text.endswith(end))
    return Named(kind=next(kinds, "image"), text=text)
