"""Readers: one for the pieces of an iterator, and one that hashes what it reads."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from imagebuilder.core.progress import Advance, no_advance


class IterReader:
    """Reads the pieces of an iterator as one stream, and keeps one piece at a time."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)


class HashedReader(io.RawIOBase):
    """Hashes a stream while it is read from start to end; calls `advance` with the number of bytes."""

    def __init__(self, stream: BinaryIO, advance: Advance = no_advance) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._stream, self._advance = stream, advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._hash.update(data)
        self._advance(len(data))
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
