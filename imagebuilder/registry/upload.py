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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from imagebuilder.errors import GateError, InputError, Problem, RegistryError, StoreError
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
        moved: tags that stood for another image before, and its digest.
        retries: how often something was tried again.
        resumed: how often an upload went on in the middle after it was cut off.
        resent_bytes: of layers, that travelled more than once.
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
    moved: tuple[tuple[str, str], ...]
    retries: int
    resumed: int
    resent_bytes: int
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
    move: bool = False,
    advance: Advance = no_advance,
) -> PushResult:
    """Push an image of the store.

    Args:
        image: what to push.
        store: that holds its blobs.
        reference: where to, `host/path` or `host/path:tag`.
        tags: to give it there, besides the one in the reference.
        options: how to reach the registry.
        move: let a tag that stands for another image stand for this one.
        advance: told the bytes done, of `image.size` in all; bytes that need not travel count at once.

    Raises:
        InputError: the reference or a tag is not one.
        GateError: a tag stands for another image, and may not be moved; nothing was sent.
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
        standing = _standing(client, image.manifest, names)
        if standing and not move:
            raise _immovable(target.name, standing)
        uploads = [_Upload(client, blob, elsewhere.get(blob.digest, ""), advance) for blob in blobs]
        fates = _push_blobs(client, uploads)
        sources.remember(store, target, [blob.digest for blob in blobs])
        _push_manifest(client, image.manifest, manifest, names, move=move)
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
        moved=tuple(standing.items()),
        retries=client.retries,
        resumed=sum(upload.resumed for upload in uploads),
        resent_bytes=sum(
            upload.sent - (upload.blob.size if fates[upload.blob.digest] == _PUSHED else 0)
            for upload in uploads
        ),
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


def _standing(client: Client, digest: str, tags: Sequence[str]) -> dict[str, str]:
    """Find the tags that stand for another image now, and its digest."""
    found = {tag: client.head_manifest(tag) for tag in tags}
    return {tag: there for tag, there in found.items() if there not in {"", digest}}


def _immovable(name: str, standing: Mapping[str, str]) -> GateError:
    problems = [
        Problem(
            message=f"the tag {tag} stands for another image, {digest}",
            where=f"{name}:{tag}",
            hint="choose another tag, or say --move: whoever runs it by its tag then gets other bytes",
        )
        for tag, digest in standing.items()
    ]
    error = GateError(problems[0].message)
    error.problems = tuple(problems)
    return error


def _push_blobs(client: Client, uploads: Sequence[_Upload]) -> dict[str, str]:
    """Bring all blobs into the repository, several at once: how each of them came there."""
    fates = {}
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="push") as pool:
        waiting = {pool.submit(upload.run): upload.blob for upload in uploads}
        try:
            for done in as_completed(waiting):
                fates[waiting[done].digest] = done.result()
        except BaseException:
            # The others stop at their next piece; what they sent so far, the registry forgets by itself.
            client.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return fates


def _push_manifest(client: Client, digest: str, data: bytes, tags: Sequence[str], *, move: bool) -> None:
    """Put the manifest by its digest, see that it is what was sent, and let the tags stand for it."""
    headers = {"Content-Type": json.loads(data)["mediaType"]}
    if client.head_manifest(digest) != digest:
        client.request("PUT", f"manifests/{digest}", wanted=(201,), headers=headers, body=data)
    client.get_manifest(digest)
    for tag in tags:
        there = client.head_manifest(tag)
        if there == digest:
            continue
        if there and not move:  # somebody else set it while the layers travelled
            raise _immovable(client.reference.name, {tag: there})
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
        self.blob = blob
        self.sent = 0
        self.resumed = 0
        self._client = client
        self._source = source
        self._advance = advance
        self._counted = 0

    def run(self) -> str:
        failures, offset, place = 0, 0, ""
        while True:
            try:
                if self._exists():
                    self._count(self.blob.size)
                    return _PUSHED if place else _REUSED
                place, reached = self._resume(place) if place else ("", 0)
                self.resumed += reached > 0
                if reached > offset:
                    failures = 0
                offset = reached
                if not place:
                    place = self._begin()
                    if not place:
                        self._count(self.blob.size)
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
                    f"a layer of {self.blob.size} bytes could not be pushed: {reason}",
                    where=str(self._client.reference),
                    hint="push again; what is there already does not travel again",
                )
            self._client.pause(failures, reason)

    def _exists(self) -> bool:
        reply = self._client.request("HEAD", f"blobs/{self.blob.digest}", wanted=(200, 404))
        return reply.status_code == 200

    def _begin(self) -> str:
        """Open an upload and return its URL; "" when the registry linked the blob from another repository."""
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
        if reached > self.blob.size:
            return "", 0
        return (self._location(reply.headers) if "Location" in reply.headers else place), reached

    def _send(self, place: str, offset: int) -> bool:
        """Send what is missing, and close the upload. False when the registry knows it no more."""
        size = self.blob.size
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
                body=lambda: _Piece(self.blob.path, offset, size, self._passed, self._client.stopped),
                reply_seconds=BLOB_REPLY_SECONDS,
            )
            if reply.status_code in gone:
                return False
            place = self._location(reply.headers)
        closing = f"{place}{'&' if '?' in place else '?'}digest={self.blob.digest}"
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
            if _hash(self.blob.path) != self.blob.digest:
                raise _damaged(self.blob.path, "the image") from error
            raise
        return reply.status_code not in gone

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
    """A blob from an offset on, in pieces: never more than one of them in memory."""

    def __init__(
        self, path: Path, offset: int, size: int, passed: Callable[[int, int], None], stopped: threading.Event
    ) -> None:
        self._path = path
        self._offset = offset
        self._size = size
        self._passed = passed
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
                self._passed(position, len(data))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
