"""What a build tells while it runs: one small interface, and what the terminal, CI and programs make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Advance = Callable[[int], None]
"""Called with the number of bytes done since the last call; may be called from any thread."""


def no_advance(_count: int) -> None:
    """Report to nobody."""


class Progress(Protocol):
    """Where an engine reports; every call may come from any thread.

    `key` names one row (a layer or a step) from its first `begin` to its `end`.
    """

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        """Show a row, or move it to another state (`downloading`, `splicing`, ...); `total` is in bytes."""

    def advance(self, key: str, count: int) -> None:
        """Add to the bytes done of a row."""

    def end(self, key: str, title: str, state: str, size: int = 0) -> None:
        """Finish a row as `cached`, `done` or `failed`; `size` is the layer's compressed size in bytes."""

    def note(self, text: str) -> None:
        """Show a line of its own."""
