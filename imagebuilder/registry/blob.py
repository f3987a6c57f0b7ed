"""Upload one blob to a repository: link it, send it in one request, or in pieces if the connection is bad."""

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

import requests

from imagebuilder.core.progress import Advance
from imagebuilder.errors import RegistryError, StoreError
from imagebuilder.registry.client import BLOB_REPLY_SECONDS, PLAIN, Client, RequestOptions
from imagebuilder.registry.faults import Interrupted

log = logging.getLogger(__name__)

REUSED, MOUNTED, PUSHED = "reused", "mounted", "pushed"
_PIECE = 1024 * 1024
_PIECEWISE = 3
# After this many failures to link a blob it is sent instead: some registries always fail to link.
_LINKS = 2
# After this many failures to ask for the position, an upload starts from the beginning.
_RESUMES = 3
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A blob of the store that a manifest names; `is_whole`: its file has no holes (`store.sparse`)."""

    digest: str
    size: int
    path: Path
    is_whole: bool = True


class Upload:
    """The upload of one blob, which continues after broken connections and restarts of the registry.

    Attributes:
        blob: the blob to upload.
        sent: the number of bytes sent, including those that were sent again.
        resumed: how often the upload continued in the middle.

    """

    def __init__(
        self,
        client: Client,
        blob: Blob,
        source: str,
        advance: Advance,
        bring: Callable[[Blob], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            client: the repository's client.
            blob: the blob to upload.
            source: another repository of the registry that may have the blob; "" for none.
            advance: called with the number of bytes done; bytes sent again count once.
            bring: fetches or fills the blob before it is sent, if its bytes are elsewhere.

        """
        self.blob = blob
        self.sent = 0
        self.resumed = 0
        self._client = client
        self._source = source
        self._bring = bring
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
        # How often in a row nobody could say how far the upload got.
        self._silent = 0
        self._budget = client.budget()

    def run(self) -> str:
        """Upload the blob. Returns PUSHED, MOUNTED (linked from another repository) or REUSED.

        Raises:
            RegistryError: the registry refused it, or failed too often.
            StoreError: the blob does not match its digest.

        """
        best = -1
        while True:
            try:
                if self._exists():
                    self._count(self.blob.size)
                    return PUSHED if self.sent else REUSED
                if self._place:
                    self._resume()
                    self.resumed += self._offset > 0
                if not self._place and not self._begin():
                    self._count(self.blob.size)
                    return MOUNTED
                # A try that got further than all before does not count as a failure.
                if self._offset > best:
                    best = self._offset
                    self._budget.progressed()
                if self._send():
                    return PUSHED
                failure = self._failed("the registry forgot the upload")
            except Interrupted as error:
                failure = error
            self._client.wait(self._budget, failure)

    def _failed(self, reason: str) -> Interrupted:
        return Interrupted(
            f"a layer of {self.blob.size} bytes could not be pushed: {reason}",
            where=str(self._client.reference),
            hint="push again; what is there already does not travel again",
        )

    def _request(
        self, method: str, place: str, wanted: tuple[int, ...], options: RequestOptions = PLAIN
    ) -> requests.Response:
        """Send one request without retries: only `run` retries."""
        budget = self._client.budget(1)
        return self._client.request(method, place, wanted=wanted, options=options, budget=budget)

    def _exists(self) -> bool:
        reply = self._request("HEAD", f"blobs/{self.blob.digest}", (200, 404))
        return reply.status_code == 200

    def _begin(self) -> bool:
        """Open an upload. Return False if the registry linked the blob from another repository instead."""
        self._offset = 0
        if self._source and self._budget.failures < _LINKS:
            place = f"blobs/uploads/?mount={self.blob.digest}&from={quote(self._source, safe='/')}"
            try:
                reply = self._request("POST", place, (201, 202))
            except Interrupted:
                raise
            except RegistryError:
                log.info("%s cannot be linked from %s", self.blob.digest, self._source)
                reply = self._request("POST", "blobs/uploads/", (202,))
            if reply.status_code == 201:
                return False
        else:
            reply = self._request("POST", "blobs/uploads/", (202,))
        if not (self.blob.is_whole and self.blob.path.exists()):
            if self._bring is None:
                raise damaged(self.blob.path, "the image")
            self._bring(self.blob)
        self._place, self._source = self._location(reply.headers), ""
        self._begun += 1
        pieces = self._limited or self._begun % _PIECEWISE == 0
        self._chunk = self._client.chunk if pieces else self.blob.size
        return True

    def _resume(self) -> None:
        """Ask how far the upload got; begin anew where the registry does not know it, or is beside itself."""
        place, anything = self._place, (200, 202, 204, 400, 401, 403, 404, 405, 409, 410, 416)
        try:
            reply = self._request("GET", place, anything)
        except Interrupted:
            # The registry itself answers, so it may be the place that is gone.
            self._silent += 1
            self._place = place if self._silent < _RESUMES else ""
            raise
        self._silent = 0
        self._place, self._offset = "", 0
        found = _RANGE.fullmatch(reply.headers.get("Range", ""))
        if reply.status_code != 204 or not found:
            return
        # Registries write "0-0" if they have received nothing.
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
            piece = RequestOptions(
                headers=headers,
                body=partial(_Piece, self.blob.path, offset, end, self._passed, self._client.stopped),
                reply_seconds=BLOB_REPLY_SECONDS,
            )
            reply = self._request("PATCH", self._place, (201, 202, 204, *gone), piece)
            if reply.status_code in gone:
                # A proxy in front of the registry limits the size of a request; pieces may be small enough.
                if reply.status_code == 413:
                    self._limited, self._chunk = True, self._client.chunk
                return False
            self._place, self._offset = self._location(reply.headers), end
        closing = f"{self._place}{'&' if '?' in self._place else '?'}digest={self.blob.digest}"
        last = RequestOptions(
            headers={"Content-Type": "application/octet-stream"}, reply_seconds=BLOB_REPLY_SECONDS
        )
        reply = self._request("PUT", closing, (201, 204, 400, 404, 416), last)
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
        """Report the bytes up to a position; bytes sent again count once."""
        if position > self._counted:
            self._advance(position - self._counted)
            self._counted = position


class _Piece:
    """A blob between two offsets, in pieces, of which only one is in memory at a time."""

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
    """Make the error for a damaged blob."""
    return StoreError(
        "a blob of the image is gone or damaged",
        where=str(path),
        hint=f"run: imagebuilder cache verify, and build {name} again",
    )
