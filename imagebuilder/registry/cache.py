"""The cache: a repository that keeps layers and packages for several hosts, each blob under its digest.

Registries find blobs by sha256, and locks name every layer and package by sha256. So a host asks the cache
by digest, and checks the bytes that come. It believes nothing else that a cache says. A cache that fails or
is slow is left alone for the rest of the command, with a warning: the build goes on as without it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from imagebuilder.core import labels, tarstream
from imagebuilder.core.documents import digest_of, dumps
from imagebuilder.core.progress import Advance, Progress
from imagebuilder.core.reference import Reference, parse
from imagebuilder.errors import FetchError, ImagebuilderError, LockError, RegistryError, StoreError
from imagebuilder.host.site import Site
from imagebuilder.registry import artefacts, pull, reader, sources
from imagebuilder.registry.blob import PUSHED, Blob, Upload
from imagebuilder.registry.client import Client, Options, options_for
from imagebuilder.registry.faults import Interrupted
from imagebuilder.registry.upload import push_blobs
from imagebuilder.store import LayerRecord, Store, sparse
from imagebuilder.store.partial import WrongBytesError

log = logging.getLogger(__name__)

ARTEFACT_TYPE = "application/vnd.imagebuilder.cache.v1"
# A cache must not make a build much slower than no cache. It has this many seconds to answer all questions of
# a step, to accept a connection, and to send the next byte. After as many seconds its transfers together must
# have this pace, in bytes a second.
PATIENCE = 10.0
SLOWEST = 250_000
_QUESTIONS = 16
_TRANSFERS = 6


@dataclass(frozen=True, kw_only=True)
class CachedBlob:
    """A blob to fetch: its digest, its size in bytes, and where it goes in the store."""

    digest: str
    size: int
    place: Path


_Answer = TypeVar("_Answer")


class Cache:
    """The cache of one command.

    Attributes:
        reference: the repository.
        is_off: whether it failed, so that it is not asked again.

    """

    def __init__(self, repository: str, site: Site, warn: Callable[[str], None]) -> None:
        """Prepare; this asks nothing yet.

        Args:
            repository: `host/path`.
            site: how to reach its registry.
            warn: shows why the cache is not used.

        Raises:
            InputError: that is not a repository.

        """
        self.reference = parse(repository)
        self.is_off = False
        self._warn = warn
        self._guard = threading.Lock()
        self._client = Client(self.reference, _impatient(options_for(site, self.reference.host)))

    def find(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Return the digests of the blobs that the cache says it has, with these sizes."""
        found = self._ask(lambda digest: self._has(digest, sizes[digest]) or None, tuple(sizes))
        return frozenset(found)

    def read_artefacts(self, tags: Sequence[str], artifact_type: str) -> dict[str, bytes]:
        """Read artefacts of one small file by their tags, without those that are missing or malformed."""
        return self._ask(lambda tag: self._read_artefact(tag, artifact_type), tags)

    def _ask(self, question: Callable[[str], _Answer | None], names: Sequence[str]) -> dict[str, _Answer]:
        """Ask one question about each name; returns the answers that are not None."""
        if self.is_off or not names:
            return {}
        pool = ThreadPoolExecutor(_QUESTIONS, thread_name_prefix="ask")
        try:
            asked = {pool.submit(question, name): name for name in names}
            done, late = wait(asked, timeout=PATIENCE, return_when=FIRST_EXCEPTION)
            failure = next((job.exception() for job in done if job.exception()), None)
            if failure is not None and not isinstance(failure, ImagebuilderError):
                raise failure
            if failure is not None or late:
                self._turn_off(_reason(failure) if failure else f"no answer within {PATIENCE:.0f} s")
                return {}
            return {asked[job]: answer for job in done if (answer := job.result()) is not None}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read_artefact(self, tag: str, artifact_type: str) -> bytes | None:
        found = reader.find_manifest(self._client, tag)
        if found is None:
            return None
        try:
            named = f"{self.reference.name}:{tag}"
            manifest = reader.parse(reader.ImageManifest, found.data, named)
            if manifest.artifact_type != artifact_type or len(manifest.layers) != 1:
                return None
            return reader.blob(self._client, manifest.layers[0])
        except Interrupted:
            raise
        except RegistryError as error:
            log.info("%s: %s", tag, error)  # not what its digest says: as good as missing
            return None

    def fetch(
        self,
        blobs: Sequence[CachedBlob],
        store: Store,
        advance: Callable[[str, int], None],
        finished: Callable[[str], None],
    ) -> frozenset[str]:
        """Fetch blobs into the store, and check each against its digest.

        Args:
            blobs: those that the cache said it has.
            store: they go there.
            advance: called from any thread with a digest and the bytes received since the last call; an
                exception raised in it ends all transfers.
            finished: called with a digest when its blob is in the store.

        Returns:
            The digests of the blobs that are in the store now. The cache lost the others, or failed.

        Raises:
            StoreError: the disk is full or not writable.

        """
        unique = tuple({blob.place: blob for blob in blobs}.values())
        pace = _Pace()

        def one(blob: CachedBlob) -> str:
            def count(size: int) -> None:
                advance(blob.digest, size)
                pace.count(size)

            if not self._fetch(blob, store, count):
                return ""
            finished(blob.digest)
            return blob.digest

        with ThreadPoolExecutor(_TRANSFERS, thread_name_prefix="cache") as pool:
            jobs: list[Future[str]] = [pool.submit(one, blob) for blob in unique]
            try:
                return frozenset(digest for job in jobs if (digest := job.result()))
            except BaseException:
                self._client.stopped.set()
                for job in jobs:
                    job.cancel()
                raise

    def _fetch(self, blob: CachedBlob, store: Store, advance: Advance) -> bool:
        """Fetch one blob; return whether it is in the store."""
        with store.exclusive(f"download {blob.digest.removeprefix('sha256:')}"):
            if blob.place.is_file() and blob.place.stat().st_size == blob.size:
                return True
            if self.is_off:
                return False
            try:
                # Asked again: the registry may have cleaned up since.
                if not self._has(blob.digest, blob.size):
                    return False
                pull.receive(self._client, blob.digest, blob.size, blob.place, advance)
            except _SlowError:
                self._turn_off(f"sends less than {SLOWEST // 1000} kB a second")
            except (FetchError, RegistryError) as error:
                if not isinstance(error.__cause__, WrongBytesError):
                    self._turn_off(_reason(error))
                else:
                    self._warn(f"the cache {self.reference.name}: {_reason(error)}")
            else:
                return True
        return False

    def _has(self, digest: str, size: int) -> bool:
        reply = self._client.request("HEAD", f"blobs/{digest}", wanted=(200, 404))
        return reply.status_code == 200 and reply.headers.get("Content-Length", str(size)) == str(size)

    def _turn_off(self, reason: str) -> None:
        with self._guard:
            first, self.is_off = not self.is_off, True
        self._client.stopped.set()
        if first:
            self._warn(f"the cache {self.reference.name} is not used any more: {reason}")


def take(claimed: Mapping[str, LayerRecord], cache: Cache, store: Store) -> dict[str, LayerRecord]:
    """Return the layers that the cache holds, or that came from it before, and record where their bytes are.

    Args:
        claimed: what the lock says of layers, by their key.
        cache: is asked for those whose bytes are not here.
        store: knows them from now on.

    """
    sizes = {record.digest: record.size for record in claimed.values() if not record.is_empty}
    here = {digest for digest, size in sizes.items() if store.has_blob(digest, size)}
    found = cache.find({digest: size for digest, size in sizes.items() if digest not in here})
    if cache.is_off:
        return {}
    there = here | found
    taken = {key: record for key, record in claimed.items() if record.is_empty or record.digest in there}
    for key, record in taken.items():
        store.put_taken(key, record)
        if record.digest in found:
            store.put_away(record.digest, record.size, cache.reference.name)
    if found:
        # A push to the same registry links them.
        sources.remember(store, cache.reference, sorted(found))
    return taken


def bring(
    layers: Iterable[LayerRecord],
    store: Store,
    site: Site,
    advance: Advance,
    warn: Callable[[str], None],
) -> tuple[LayerRecord, ...]:
    """Fetch the layers whose bytes are only in a registry.

    Args:
        layers: records of layers; those whose blob is here cost nothing.
        store: has the records, and gets the blobs.
        site: how to reach the registries.
        advance: called with the bytes received.
        warn: shows why a cache is not used.

    Returns:
        The layers that no registry gave. The store forgets that it had them.

    Raises:
        LockError: a layer is not what the lock says: another diffID, or another size.
        StoreError: the disk is full or not writable.

    """
    wanted = {r.digest: r for r in layers if not r.is_empty and not store.has_blob(r.digest, r.size)}
    places: dict[str, list[LayerRecord]] = {}
    for record in wanted.values():
        places.setdefault(store.away(record.digest, record.size), []).append(record)
    there: set[str] = set()
    for repository, records in places.items():
        if repository:
            blobs = [CachedBlob(digest=r.digest, size=r.size, place=store.blob(r.digest)) for r in records]
            there |= Cache(repository, site, warn).fetch(
                blobs, store, lambda _digest, count: advance(count), lambda _digest: None
            )
    with ThreadPoolExecutor(thread_name_prefix="check") as pool:
        list(pool.map(lambda digest: _check(wanted[digest], store), there))
    lost = tuple(record for digest, record in wanted.items() if digest not in there)
    for record in lost:
        store.drop_away(record.digest)
    return lost


def require_here(
    layers: Sequence[LayerRecord], name: str, store: Store, site: Site, progress: Progress
) -> None:
    """Fetch the layers of an image whose bytes are only in a registry.

    Args:
        layers: those that are needed.
        name: of the image.
        store: has the records, and gets the blobs.
        site: how to reach the registries.
        progress: shows the transfer.

    Raises:
        StoreError: no registry gives them any more.

    """
    size = sum(record.size for record in layers if not store.has_blob(record.digest, record.size))
    if not size:
        return
    title = f"layers of {name}"
    progress.begin("bring", title, "fetching", size)
    with store.in_use():
        lost = bring(layers, store, site, lambda count: progress.advance("bring", count), progress.note)
    progress.end("bring", title, "failed" if lost else "done", size)
    if lost:
        raise StoreError(
            f"{len(lost)} of its layers are not in the store, and no registry has them any more",
            where=name,
            hint="build it again: that makes the layers from their packages",
        )


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A blob that belongs to a lock.

    Attributes:
        digest, size: of the blob.
        media_type: of a layer, or of a package.
        name: of a package's file, or a layer's title.
        path: where its bytes are, if they are here.

    """

    digest: str
    size: int
    media_type: str
    name: str
    path: Path

    def blob(self, store: Store) -> Blob:
        """Return what to upload."""
        is_whole = sparse.holes(store, self.path) is None
        return Blob(digest=self.digest, size=self.size, path=self.path, is_whole=is_whole)

    @property
    def descriptor(self) -> dict[str, object]:
        """How a manifest names it."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            "annotations": {labels.TITLE: self.name},
        }


@dataclass(frozen=True, kw_only=True)
class SmallArtefact:
    """An artefact of one small file."""

    artifact_type: str
    media_type: str
    data: bytes

    def manifest(self) -> bytes:
        """Return its manifest."""
        return _manifest(
            self.artifact_type,
            [artefacts.ArtefactBlob(media_type=self.media_type, data=self.data).descriptor],
        )


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What was put into a cache: blobs and their bytes, and how many of the lock's blobs it has now."""

    blobs: int
    bytes: int
    kept: int


def fill(
    entries: Sequence[CacheEntry], reference: Reference, store: Store, site: Site, advance: Advance
) -> Filled:
    """Put the blobs of a lock into a cache, with one manifest, so that its registry does not clean them up.

    Several hosts may do this at once: blobs go by their digest, and a manifest that loses entries to another
    host's is written again.

    Args:
        entries: everything that the lock names; those whose bytes are not here may be in the cache already.
        reference: the cache's repository; its tag is the manifest's, the lock's checksum.
        store: remembers what is where.
        site: how to reach the registry.
        advance: called with the bytes that are in the cache, of those that are here.

    Raises:
        RegistryError: the cache refused, is full, broke or cannot be reached.

    """
    wanted = {entry.digest: entry for entry in entries}
    known = sources.known(store, reference)
    linked = {digest: path for digest, path in known.items() if digest in wanted and path != reference.path}
    client = Client(reference, _filling(site, reference), "pull,push", tuple(sorted(set(linked.values()))))
    here = [entry for entry in wanted.values() if entry.path.is_file()]
    blobs = [entry.blob(store) for entry in here]
    # In any order: several hosts that fill a cache at once would send the same blob at the same time.
    random.shuffle(blobs)
    uploads = [
        Upload(client, blob, linked.get(blob.digest, ""), advance, partial(fill_wheel, store))
        for blob in blobs
    ]
    fates = push_blobs(client, uploads)
    sources.remember(store, reference, sorted(fates))
    kept = _keep(client, reference.tag, wanted, fates.keys())
    sent = [upload.blob.size for upload in uploads if fates[upload.blob.digest] == PUSHED]
    return Filled(blobs=len(sent), bytes=sum(sent), kept=len(kept))


def fill_wheel(store: Store, blob: Blob) -> None:
    """Make a wheel whole before it is sent, where only a layer has its bytes; see `store.sparse`."""
    sparse.fill(store, blob.digest.removeprefix("sha256:"))


def put_artefacts(found: Mapping[str, SmallArtefact], reference: Reference, site: Site) -> None:
    """Put small artefacts into a cache, in place of others under the same tags.

    Raises:
        RegistryError: the cache refused, is full, broke or cannot be reached.

    """
    client = Client(reference, _filling(site, reference), "pull,push")

    def put(tag: str) -> None:
        artefacts.put_blob(client, found[tag].data)
        artefacts.put_manifest(client, tag, found[tag].manifest())

    if found:
        artefacts.put_blob(client, artefacts.EMPTY)
        with ThreadPoolExecutor(_QUESTIONS, thread_name_prefix="put") as pool:
            list(pool.map(put, found))


def _filling(site: Site, reference: Reference) -> Options:
    return replace(options_for(site, reference.host), attempts=3, seconds=60.0)


def _manifest(artifact_type: str, rows: Sequence[Mapping[str, object]]) -> bytes:
    config = artefacts.ArtefactBlob(media_type=artefacts.EMPTY_TYPE, data=artefacts.EMPTY)
    return dumps(
        {
            "schemaVersion": 2,
            "mediaType": reader.OCI_MANIFEST,
            "artifactType": artifact_type,
            "config": config.descriptor,
            "layers": rows,
        }
    )


def _has(client: Client, digest: str) -> bool:
    return client.request("HEAD", f"blobs/{digest}", wanted=(200, 404)).status_code == 200


def _keep(client: Client, tag: str, wanted: Mapping[str, CacheEntry], there: Collection[str]) -> set[str]:
    """Write the manifest of the blobs of a lock that the cache has; returns their digests.

    Registries have no locks. But whoever writes last sees the blobs of the others, which came before their
    manifests, and writes again.
    """
    artefacts.put_blob(client, artefacts.EMPTY)
    kept: set[str] = set()
    more = {*there, *_present(client, wanted.keys() - there)}
    while more:
        kept |= more
        data = _manifest(ARTEFACT_TYPE, [wanted[digest].descriptor for digest in sorted(kept)])
        if client.head_manifest(tag) != digest_of(data):
            artefacts.put_manifest(client, tag, data)
        more = _present(client, wanted.keys() - kept)
    return kept


def _present(client: Client, digests: Collection[str]) -> set[str]:
    """Return the blobs that a repository has."""
    ordered = sorted(digests)
    with ThreadPoolExecutor(_QUESTIONS, thread_name_prefix="ask") as pool:
        found = zip(ordered, pool.map(partial(_has, client), ordered), strict=True)
        return {digest for digest, has in found if has}


def _check(record: LayerRecord, store: Store) -> None:
    """Refuse a fetched layer that unpacks to something else than its record says."""
    place = store.blob(record.digest)
    place.chmod(0o444)  # exported image folders share these files
    _, diff_id, unpacked = tarstream.digests(place)
    if (diff_id, unpacked) != (record.diff_id, record.unpacked):
        store.drop_away(record.digest)
        place.unlink(missing_ok=True)
        raise LockError(
            f"the layer {record.digest} unpacks to {diff_id or 'nothing'} ({unpacked} bytes), "
            f"but the lock says {record.diff_id} ({record.unpacked} bytes)",
            where="layers",
            hint="somebody changed the lock: look at its history; `imagebuilder lock` writes the true values",
        )


def _impatient(options: Options) -> Options:
    return replace(options, attempts=2, seconds=PATIENCE, patience=PATIENCE)


def _reason(error: BaseException) -> str:
    return error.problems[0].message if isinstance(error, ImagebuilderError) else str(error)


class _SlowError(Exception):
    """Ends a transfer from a cache that is slower than `SLOWEST`; it is never shown."""


class _Pace:
    """Measures all transfers of one step together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._began = time.monotonic()
        self._bytes = 0

    def count(self, size: int) -> None:
        """Count bytes.

        Raises:
            _SlowError: there were too few of them since the beginning.

        """
        with self._guard:
            self._bytes += size
            seconds = time.monotonic() - self._began
            if seconds > PATIENCE and self._bytes < seconds * SLOWEST:
                raise _SlowError
