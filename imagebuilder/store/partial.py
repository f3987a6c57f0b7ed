"""Download a file in several attempts: received bytes are kept, and the next attempt continues there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from imagebuilder.store.files import explained, open_part

Source = Callable[[int], AbstractContextManager[tuple[int, Iterable[bytes]]]]
"""Opens a file at a position. Gives that position (0 if it cannot seek), and the bytes from there on."""

_CHUNK = 1 << 20


class FailedError(Exception):
    """An attempt failed."""


class BrokenOffError(FailedError):
    """The source ended before the end of the file; another attempt can continue."""


class WrongBytesError(FailedError):
    """The received file is not the requested one."""


class StoppedError(Exception):
    """Another thread stopped all downloads."""


class PartialFile:
    """One file, received in one or several attempts.

    Args:
        place: path of the complete file.
        size, sha256: size and hash of the complete file.
        advance: called with the number of bytes received; a negative number for discarded bytes.
        stop: set by another thread to stop the attempt.

    """

    def __init__(
        self, place: Path, *, size: int, sha256: str, advance: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._place, self._part = place, place.with_name(f"{place.name}.part")
        self._size, self._sha256 = size, sha256
        self._advance, self._stop = advance, stop
        self._told = 0
        with explained(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        self._most = self._received()

    def attempt(self, source: Source, origin: str) -> None:
        """Receive the missing bytes, check the file, and move it to its place.

        Args:
            source: opens the file at a position.
            origin: the source's name in messages.

        Raises:
            BrokenOffError: the source ended early.
            WrongBytesError: it is another file; its bytes are discarded.
            StoppedError: `stop` was set.
            StoreError: the disk is full or not writable.

        """
        try:
            self._receive(source, origin)
        except WrongBytesError:
            self._tell(0)
            self._part.unlink(missing_ok=True)
            raise
        with explained(self._place):
            self._part.replace(self._place)

    def progressed(self) -> bool:
        """Return whether the file has grown since the last call, which is worth another attempt."""
        before, self._most = self._most, max(self._most, self._received())
        return self._most > before

    def _receive(self, source: Source, origin: str) -> None:
        digest = hashlib.sha256()
        have = 0
        with open_part(self._part) as file:
            while chunk := file.read(_CHUNK):
                self._go_on()
                digest.update(chunk)
                have += len(chunk)
            if have > self._size:
                have, digest = 0, hashlib.sha256()
            self._tell(have)
            if have < self._size:
                with source(have) as (start, chunks):
                    if start != have:  # the source cannot seek: begin again
                        have, digest = 0, hashlib.sha256()
                        self._tell(0)
                    with explained(self._part):
                        file.seek(have)
                        file.truncate()
                    for chunk in chunks:
                        self._go_on()
                        have += len(chunk)
                        if have > self._size:
                            raise WrongBytesError(f"wanted {self._size} bytes, got more from {origin}")
                        digest.update(chunk)
                        with explained(self._part):
                            file.write(chunk)
                        self._tell(have)
        if have < self._size:
            raise BrokenOffError(f"wanted {self._size} bytes, got {have} from {origin}")
        if digest.hexdigest() != self._sha256:
            raise WrongBytesError(f"wanted sha256 {self._sha256}, got {digest.hexdigest()} from {origin}")

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _tell(self, have: int) -> None:
        if have != self._told:
            self._advance(have - self._told)
            self._told = have

    def _received(self) -> int:
        try:
            return self._part.lstat().st_size
        except FileNotFoundError:
            return 0
