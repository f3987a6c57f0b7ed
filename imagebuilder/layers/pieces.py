"""Pieces of bytes, made one after the other, read as a file is."""

from __future__ import annotations

from collections.abc import Iterator


class Pieces:
    """What reads a stream gets what an iterator gives, none of it kept."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Give at most so many bytes; none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)
