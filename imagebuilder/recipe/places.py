"""The places of a recipe's keys, for messages: file, line and key."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuilder.core.yamlfile import Document, dotted_path


@dataclass(frozen=True, kw_only=True)
class Places:
    """The places of one recipe's keys.

    Attributes:
        recipe: its name, used in messages if the recipe was not read from a file.
        document: the parsed file.

    """

    recipe: str
    document: Document | None = None

    def of(self, *path: str | int) -> str:
        """Return the place of a key: `recipes/x.yaml:7: pins.nccl`; without a file `x: pins.nccl`."""
        if self.document is None or path[0] not in self.document.data:
            return f"{self.recipe}: {dotted_path(path)}"
        return self.document.where(path)

    def of_package(self, name: str) -> str:
        """Return the place of a Debian package under `apt:`, with or without a version there."""
        if self.document is None:
            return f"{self.recipe}: apt: {name}"
        listed = self.document.data.get("apt", ())
        index = next((i for i, item in enumerate(listed) if str(item).partition("=")[0] == name), None)
        return self.document.where(("apt",) if index is None else ("apt", index))
