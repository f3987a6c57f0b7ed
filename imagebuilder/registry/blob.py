"""One blob on its way into a repository: linked, sent in one go, or in pieces where the way is bad."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from imagebuilder.errors import RegistryError, StoreError
from imagebuilder.progress import Advance
from imagebuilder.registry.client import BLOB_REPLY_SECONDS, Client
from imagebuilder.registry.faults import Interrupted

log = logging.getLogger(__name__)

REUSED, MOUNTED, PUSHED = "reused", "mounted", "pushed"
_PIECE = 1024 * 1024
_PIECEWISE = 3
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A blob of the store that a manifest names."""

    digest: str
    size: int
    path: Path


class Upload:
    """The way of one blob into the repository, through cuts and restarts of the registry.

    Attributes:
        blob: what is to get there.
        sent: bytes that travelled, those that travelled twice counted twice.
        resumed: how often it went on in the middle.

    """

    def __init__(self, client: Client, blob: Blob, source: str, advance: Advance) -> None:
        """Prepare.

        Args:
            client: of the repository.
            blob: what is to get there.
            source: another repository of the registry that may have it; empty for none.
            advance: told the bytes done, those that travel twice only once.

        """
        self.blob = blob
        self.sent = 0
        self.resumed = 0
        self._client = client
        self._source = source
        self._advance = advance
        self._counted = 0
        # Where the upload goes on, and the bytes that the registry has acknowledged.
        self._place = ""
        self._offset = 0
        # One request for everything, as Docker does it. Every third upload that begins anew goes in pieces:
        # they pass where large or long requests are cut, but for one cut piece a registry may drop them all.
        self._chunk = blob.size
        self._begun = 0
        self._limited = False

    def run(self) -> str:
        """Bring the blob there: whether it was PUSHED, MOUNTED from elsewhere, or REUSED.

        Raises:
            RegistryError: the registry refused it, or broke too often.
            StoreError: the blob is not what its digest says.

        """
        failures, best = 0, 0
        while True:
            try:
                if self._exists():
                    self._count(self.blob.size)
                    return PUSHED if self.sent else REUSED
                if self._place:
                    self._resume()
                    self.resumed += self._offset > 0
                # What got further than ever before is no failure to count.
                failures, best = (0, self._offset) if self._offset > best else (failures, best)
                if not self._place and not self._begin():
                    self._count(self.blob.size)
                    return MOUNTED
                if self._send():
                    return PUSHED
                reason = "the registry forgot the upload"
            except Interrupted as error:
                if failures + 1 >= self._client.attempts:
                    raise
                reason = str(error.problems[0].message)
            failures += 1
            if failures >= self._client.attempts:
                raise RegistryError(
                    f"a layer of {self.blob.size} bytes could not be pushed: {reason}",
                    where=str(self._client.reference),
                    hint="push again; what is there already does not travel again",
                )
            self._client.pause(failures, reason)

    def _exists(self) -> bool:
        reply = self._client.request("HEAD", f"blobs/{self.blob.digest}", wanted=(200, 404))
        return reply.status_code == 200

    def _begin(self) -> bool:
        """Open an upload. False when the registry linked the blob from another repository instead."""
        self._offset = 0
        self._begun += 1
        pieces = self._limited or self._begun % _PIECEWISE == 0
        self._chunk = self._client.chunk if pieces else self.blob.size
        if self._source:
            source, self._source = self._source, ""
            place = f"blobs/uploads/?mount={self.blob.digest}&from={quote(source, safe='/')}"
            try:
                reply = self._client.request("POST", place, wanted=(201, 202))
            except RegistryError as error:
                if isinstance(error, Interrupted):
                    raise
                log.info("%s is not to be had from %s", self.blob.digest, source)
            else:
                if reply.status_code == 201:
                    return False
                self._place = self._location(reply.headers)
                return True
        self._place = self._location(self._client.request("POST", "blobs/uploads/", wanted=(202,)).headers)
        return True

    def _resume(self) -> None:
        """Ask how far the upload got; begin anew where the registry does not know it, or is beside itself."""
        place, self._place, self._offset = self._place, "", 0
        anything = (200, 202, 204, 400, 401, 403, 404, 405, 409, 410, 416)
        reply = self._client.request("GET", place, wanted=anything)
        found = _RANGE.fullmatch(reply.headers.get("Range", ""))
        if reply.status_code != 204 or not found:
            return
        # "0-0" is how registries write that nothing is there.
        reached = int(found[1]) + 1 if int(found[1]) else 0
        if reached <= self.blob.size:
            self._place = self._location(reply.headers) if "Location" in reply.headers else place
            self._offset = reached

    def _send(self) -> bool:
        """Send what is missing, and close the upload. False when the registry knows it no more."""
        size = self.blob.size
        while self._offset < size:
            offset, end = self._offset, min(self._offset + self._chunk, size)
            headers = {"Content-Type": "application/octet-stream"}
            if (offset, end) != (0, size):
                headers["Content-Range"] = f"{offset}-{end - 1}"
            gone = (400, 404, 409, 416) if offset else (404, 416)
            if end - offset > self._client.chunk:
                gone = (*gone, 413)
            reply = self._client.request(
                "PATCH",
                self._place,
                wanted=(201, 202, 204, *gone),
                headers=headers,
                attempts=1,
                body=partial(_Piece, self.blob.path, offset, end, self._passed, self._client.stopped),
                reply_seconds=BLOB_REPLY_SECONDS,
            )
            if reply.status_code in gone:
                # A proxy in front of the registry has a limit, which pieces may be below.
                if reply.status_code == 413:
                    self._limited, self._chunk = True, self._client.chunk
                return False
            self._place, self._offset = self._location(reply.headers), end
        reply = self._client.request(
            "PUT",
            f"{self._place}{'&' if '?' in self._place else '?'}digest={self.blob.digest}",
            wanted=(201, 204, 400, 404, 416),
            attempts=1,
            reply_seconds=BLOB_REPLY_SECONDS,
            headers={"Content-Type": "application/octet-stream"},
        )
        # 400: the registry received other bytes than the digest says. Ours, or did they change on the way?
        if reply.status_code == 400 and _hash(self.blob.path) != self.blob.digest:
            raise damaged(self.blob.path, "the image")
        return reply.status_code in {201, 204}

    def _location(self, headers: Any) -> str:
        place = headers.get("Location", "")
        if not place:
            raise RegistryError(
                "the registry names no place for an upload", where=str(self._client.reference)
            )
        return self._client.url(place)

    def _passed(self, position: int, size: int) -> None:
        self.sent += size
        self._count(position)

    def _count(self, position: int) -> None:
        """Report bytes up to a position, those that travel twice only once."""
        if position > self._counted:
            self._advance(position - self._counted)
            self._counted = position


class _Piece:
    """A blob from an offset up to another, in pieces: never more than one of them in memory."""

    def __init__(
        self, path: Path, offset: int, end: int, passed: Callable[[int, int], None], stopped: threading.Event
    ) -> None:
        self._path = path
        self._offset = offset
        self._end = end
        self._passed = passed
        self._stopped = stopped

    def __len__(self) -> int:
        return self._end - self._offset

    def __iter__(self) -> Iterator[bytes]:
        position = self._offset
        with self._path.open("rb") as file:
            file.seek(position)
            while data := file.read(min(_PIECE, self._end - position)):
                if self._stopped.is_set():
                    raise RegistryError("stopped", where=str(self._path))
                yield data
                position += len(data)
                self._passed(position, len(data))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def damaged(path: Path, name: str) -> StoreError:
    """Say that a blob is not what it should be."""
    return StoreError(
        "a blob of the image is gone or damaged",
        where=str(path),
        hint=f"run: imagebuilder cache verify, and build {name} again",
    )
