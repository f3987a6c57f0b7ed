"""Push an image: only the blobs that the registry lacks travel, the manifest after them, the tags last.

So an interrupted push leaves no image that misses a layer, and pushing again goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from imagebuilder.errors import InputError, RegistryError, StoreError
from imagebuilder.progress import Advance, no_advance
from imagebuilder.registry import sources
from imagebuilder.registry.client import BLOB_REPLY_SECONDS, Client, Options
from imagebuilder.registry.faults import Interrupted
from imagebuilder.registry.reference import check_tag, parse
from imagebuilder.store import ImageRecord, Store

log = logging.getLogger(__name__)

_PARALLEL = 4
_PIECE = 1024 * 1024
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")
_REUSED, _MOUNTED, _PUSHED = "reused", "mounted", "pushed"


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What a push did.

    Attributes:
        reference: the image by digest, `host/path@sha256:...`.
        digest: of its manifest.
        tags: that now stand for it.
        pushed_bytes: size of the blobs that travelled.
        pushed_blobs, mounted_blobs, reused_blobs: how many travelled, were linked from another repository
            of the registry, and were there already.
        reused_bytes: size of those that did not travel.
        seconds: it took.

    """

    reference: str
    digest: str
    tags: tuple[str, ...]
    pushed_bytes: int
    pushed_blobs: int
    mounted_blobs: int
    reused_blobs: int
    reused_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Blob:
    digest: str
    size: int
    path: Path


def push(
    image: ImageRecord,
    store: Store,
    reference: str,
    tags: Sequence[str] = (),
    *,
    options: Options | None = None,
    advance: Advance = no_advance,
) -> PushResult:
    """Push an image of the store.

    Args:
        image: what to push.
        store: that holds its blobs.
        reference: where to, `host/path` or `host/path:tag`.
        tags: to give it there, besides the one in the reference.
        options: how to reach the registry.
        advance: told the bytes done, of `image.size` in all; bytes that need not travel count at once.

    Raises:
        InputError: the reference or a tag is not one.
        RegistryError: the registry refused, broke or cannot be reached.
        StoreError: a blob is gone or damaged.

    """
    started = time.monotonic()
    target = parse(reference)
    if target.digest:
        raise InputError(
            "a push goes to a tag, not to a digest", where=reference, hint=f"write `{target.name}`"
        )
    names = tuple(dict.fromkeys(check_tag(tag) for tag in (target.tag, *tags) if tag))
    if not names:
        raise InputError("no tag is given", where=reference, hint=f"write `{target.name}:TAG`")
    with store.in_use():
        manifest, blobs = _contents(image, store)
        known = sources.known(store, target)
        elsewhere = {
            blob.digest: known[blob.digest]
            for blob in blobs
            if known.get(blob.digest, target.path) != target.path
        }
        client = Client(target, options or Options(), "pull,push", tuple(sorted(set(elsewhere.values()))))
        fates = _push_blobs(client, blobs, elsewhere, advance)
        sources.remember(store, target, [blob.digest for blob in blobs])
        _push_manifest(client, image.manifest, manifest, names)
    advance(len(manifest))
    stayed = [blob for blob in blobs if fates[blob.digest] != _PUSHED]
    return PushResult(
        reference=f"{target.name}@{image.manifest}",
        digest=image.manifest,
        tags=names,
        pushed_bytes=sum(blob.size for blob in blobs) - sum(blob.size for blob in stayed),
        pushed_blobs=len(blobs) - len(stayed),
        mounted_blobs=sum(fates[blob.digest] == _MOUNTED for blob in stayed),
        reused_blobs=sum(fates[blob.digest] == _REUSED for blob in stayed),
        reused_bytes=sum(blob.size for blob in stayed),
        seconds=time.monotonic() - started,
    )


def _contents(image: ImageRecord, store: Store) -> tuple[bytes, tuple[_Blob, ...]]:
    """Read the manifest, and find what it names: all there, each once, the largest first."""
    path = store.blob(image.manifest)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _damaged(path, image.name) from error
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != image.manifest:
        raise _damaged(path, image.name)
    manifest: dict[str, Any] = json.loads(data)
    blobs = {
        part["digest"]: _Blob(digest=part["digest"], size=part["size"], path=store.blob(part["digest"]))
        for part in (manifest["config"], *manifest["layers"])
    }
    for blob in blobs.values():
        if not store.has_blob(blob.digest, blob.size):
            raise _damaged(blob.path, image.name)
    # The largest first: what is last keeps only one of the connections busy.
    return data, tuple(sorted(blobs.values(), key=lambda blob: (-blob.size, blob.digest)))


def _damaged(path: Path, name: str) -> StoreError:
    return StoreError(
        "a blob of the image is gone or damaged",
        where=str(path),
        hint=f"run: imagebuilder cache verify, and build {name} again",
    )


def _push_blobs(
    client: Client, blobs: Sequence[_Blob], elsewhere: dict[str, str], advance: Advance
) -> dict[str, str]:
    """Bring all blobs into the repository, several at once: how each of them came there."""
    fates = {}
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="push") as pool:
        waiting = {
            pool.submit(_Upload(client, blob, elsewhere.get(blob.digest, ""), advance).run): blob
            for blob in blobs
        }
        try:
            for done in as_completed(waiting):
                fates[waiting[done].digest] = done.result()
        except BaseException:
            # The others stop at their next piece; what they sent so far, the registry forgets by itself.
            client.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return fates


def _push_manifest(client: Client, digest: str, data: bytes, tags: Sequence[str]) -> None:
    """Put the manifest by its digest, see that it is what was sent, and move the tags to it."""
    headers = {"Content-Type": json.loads(data)["mediaType"]}
    if client.head_manifest(digest) != digest:
        client.request("PUT", f"manifests/{digest}", wanted=(201,), headers=headers, body=data)
    client.get_manifest(digest)
    for tag in tags:
        if client.head_manifest(tag) == digest:
            continue
        client.request("PUT", f"manifests/{tag}", wanted=(201,), headers=headers, body=data)
        if client.head_manifest(tag) != digest:
            raise RegistryError(
                f"the tag {tag} does not stand for what was pushed",
                where=client.reference.name,
                hint="somebody else may be pushing the same tag; push again",
            )


class _Upload:
    """The way of one blob into the repository, through cuts and restarts of the registry."""

    def __init__(self, client: Client, blob: _Blob, source: str, advance: Advance) -> None:
        self._client = client
        self._blob = blob
        self._source = source
        self._advance = advance
        self._counted = 0

    def run(self) -> str:
        failures, offset, place = 0, 0, ""
        while True:
            try:
                if self._exists():
                    self._count(self._blob.size)
                    return _PUSHED if place else _REUSED
                place, reached = self._resume(place) if place else ("", 0)
                if reached > offset:
                    failures = 0
                offset = reached
                if not place:
                    place = self._begin()
                    if not place:
                        self._count(self._blob.size)
                        return _MOUNTED
                if self._send(place, offset):
                    return _PUSHED
                reason = "the registry forgot the upload"
            except Interrupted as error:
                if failures + 1 >= self._client.attempts:
                    raise
                reason = str(error.problems[0].message)
            failures += 1
            if failures >= self._client.attempts:
                raise RegistryError(
                    f"a layer of {self._blob.size} bytes could not be pushed: {reason}",
                    where=str(self._client.reference),
                    hint="push again; what is there already does not travel again",
                )
            self._client.pause(failures, reason)

    def _exists(self) -> bool:
        reply = self._client.request("HEAD", f"blobs/{self._blob.digest}", wanted=(200, 404))
        return reply.status_code == 200

    def _begin(self) -> str:
        """Open an upload and return its URL; "" when the registry linked the blob from another repository."""
        if self._source:
            source, self._source = self._source, ""
            place = f"blobs/uploads/?mount={self._blob.digest}&from={quote(source, safe='/')}"
            try:
                reply = self._client.request("POST", place, wanted=(201, 202))
            except RegistryError as error:
                if isinstance(error, Interrupted):
                    raise
                log.info("%s is not to be had from %s", self._blob.digest, source)
            else:
                return "" if reply.status_code == 201 else self._location(reply.headers)
        return self._location(self._client.request("POST", "blobs/uploads/", wanted=(202,)).headers)

    def _resume(self, place: str) -> tuple[str, int]:
        """Ask how far an upload got: its URL and the bytes that are there, or "" to begin anew."""
        anything = (200, 202, 204, 400, 401, 403, 404, 405, 409, 410, 416)
        reply = self._client.request("GET", place, wanted=anything)
        found = _RANGE.fullmatch(reply.headers.get("Range", ""))
        if reply.status_code != 204 or not found:
            return "", 0
        # "0-0" is how registries write that nothing is there.
        reached = int(found[1]) + 1 if int(found[1]) else 0
        if reached > self._blob.size:
            return "", 0
        return (self._location(reply.headers) if "Location" in reply.headers else place), reached

    def _send(self, place: str, offset: int) -> bool:
        """Send what is missing, and close the upload. False when the registry knows it no more."""
        size = self._blob.size
        gone = (404, 416)
        if offset < size:
            headers = {"Content-Type": "application/octet-stream"}
            if offset:
                headers["Content-Range"] = f"{offset}-{size - 1}"
            reply = self._client.request(
                "PATCH",
                place,
                wanted=(201, 202, 204, *gone),
                headers=headers,
                attempts=1,
                body=lambda: _Piece(self._blob.path, offset, size, self._count, self._client.stopped),
                reply_seconds=BLOB_REPLY_SECONDS,
            )
            if reply.status_code in gone:
                return False
            place = self._location(reply.headers)
        closing = f"{place}{'&' if '?' in place else '?'}digest={self._blob.digest}"
        try:
            reply = self._client.request(
                "PUT",
                closing,
                wanted=(201, 204, *gone),
                attempts=1,
                reply_seconds=BLOB_REPLY_SECONDS,
                headers={"Content-Type": "application/octet-stream"},
            )
        except Interrupted:
            raise
        except RegistryError as error:
            if _hash(self._blob.path) != self._blob.digest:
                raise _damaged(self._blob.path, "the image") from error
            raise
        return reply.status_code not in gone

    def _location(self, headers: Any) -> str:
        place = headers.get("Location", "")
        if not place:
            raise RegistryError(
                "the registry names no place for an upload", where=str(self._client.reference)
            )
        return self._client.url(place)

    def _count(self, position: int) -> None:
        """Report bytes up to a position, those that travel twice only once."""
        if position > self._counted:
            self._advance(position - self._counted)
            self._counted = position


class _Piece:
    """A blob from an offset on, in pieces: never more than one of them in memory."""

    def __init__(
        self, path: Path, offset: int, size: int, reached: Callable[[int], None], stopped: threading.Event
    ) -> None:
        self._path = path
        self._offset = offset
        self._size = size
        self._reached = reached
        self._stopped = stopped

    def __len__(self) -> int:
        return self._size - self._offset

    def __iter__(self) -> Iterator[bytes]:
        position = self._offset
        with self._path.open("rb") as file:
            file.seek(position)
            while data := file.read(_PIECE):
                if self._stopped.is_set():
                    raise RegistryError("stopped", where=str(self._path))
                yield data
                position += len(data)
                self._reached(position)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
