"""A file on its way into the store: what has come is kept, and the next attempt goes on there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from imagebuilder.store.files import explained, open_part

Source = Callable[[int], AbstractContextManager[tuple[int, Iterable[bytes]]]]
"""Opens a file at a position: gives that position, or 0 where it cannot, and the bytes from there on."""

_CHUNK = 1 << 20


class FailedError(Exception):
    """An attempt came to nothing."""


class BrokenOffError(FailedError):
    """Fewer bytes came than the file has; another attempt may go on from there."""


class WrongBytesError(FailedError):
    """What came is not the file that was asked for."""


class StoppedError(Exception):
    """Somebody else ended all downloads."""


class PartialFile:
    """One file that arrives in one or several attempts.

    Args:
        place: where it goes when it is whole.
        size, sha256: of the whole file.
        advance: told the bytes that came; a negative count takes back what came in vain.
        stop: ends an attempt, from another thread.

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
        """Receive what is missing, check the whole, and put it in its place.

        Args:
            source: opens what is sent.
            origin: what the source is called, for messages.

        Raises:
            BrokenOffError: the source ended early.
            WrongBytesError: it is another file; nothing of it is kept.
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
        """Tell whether the file is longer than at the last call: that is worth another attempt."""
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
                    if start != have:  # parts cannot be had, so begin again
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
