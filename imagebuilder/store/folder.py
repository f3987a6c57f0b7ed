"""The store's folder: access to blobs, downloads, records and locks."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from imagebuilder.core.documents import digest_of
from imagebuilder.errors import StoreError
from imagebuilder.store import files
from imagebuilder.store.files import explained, link_or_copy, remove_tree
from imagebuilder.store.records import (
    AWAY,
    IMAGE,
    INDEX,
    LAYER,
    SPARSE,
    AwayBlob,
    ImageRecord,
    IndexRecord,
    KeptLayer,
    LayerRecord,
    SparseDownload,
)

log = logging.getLogger(__name__)

_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_Record = TypeVar("_Record")


class BlobWriter:
    """A new blob. Its digest is computed while it is written; `commit` adds it to the store."""

    def __init__(self, store: Store, descriptor: int, path: Path) -> None:
        self._store = store
        self._descriptor = descriptor
        self._path = path
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes; large pieces are cheaper than many small ones."""
        rest = memoryview(data)
        self._hash.update(rest)
        self._size += len(rest)
        with explained(self._path):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    @property
    def digest(self) -> str:
        """Digest of the bytes written so far."""
        return f"sha256:{self._hash.hexdigest()}"

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._size

    def commit(self) -> tuple[str, int]:
        """Add the blob to the store. Returns its digest and its size in bytes."""
        digest = self.digest
        place = self._store.blob(digest)
        with explained(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            # This also replaces an older blob, which a power cut may have damaged.
            self._path.rename(place)
        return digest, self._size


class Store:
    """Access to the store's folder. Has no state besides the path, so threads may share it."""

    def __init__(self, root: Path) -> None:
        """Use this folder; it is created on the first write."""
        # Absolute, because commands with other working directories use its paths.
        self.root = root.absolute()

    @classmethod
    def default(cls) -> Store:
        """Return the store that the environment names, or the one in the user's cache folder."""
        named = os.environ.get("IMAGEBUILDER_STORE")
        if named:
            return cls(Path(named).expanduser().absolute())
        cache = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of XDG_CACHE_HOME says to ignore relative paths.
        base = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
        return cls(base / "imagebuilder")

    # Blobs and downloads

    def blob(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not."""
        return self.root / "blobs" / "sha256" / _hex(digest.removeprefix("sha256:"), digest)

    def has_blob(self, digest: str, size: int | None = None) -> bool:
        """Return whether a blob exists, with this size if given."""
        return files.is_file(self.blob(digest), size)

    def away(self, digest: str, size: int) -> str:
        """Return the repository that has a blob of this size; "" if none is known."""
        kept = _load(self._away_path(digest), AWAY)
        return kept.repository if kept is not None and kept.size == size else ""

    def put_away(self, digest: str, size: int, repository: str) -> None:
        """Record that a repository has a blob; its bytes are checked when they are fetched."""
        self._save(self._away_path(digest), AWAY.dump_json(AwayBlob(size=size, repository=repository)))

    def drop_away(self, digest: str) -> None:
        """Forget which repository has a blob."""
        path = self._away_path(digest)
        with explained(path, "removed"):
            path.unlink(missing_ok=True)

    def is_known(self, digest: str, size: int) -> bool:
        """Return whether a blob is here, or in a known registry."""
        return self.has_blob(digest, size) or bool(self.away(digest, size))

    def _away_path(self, digest: str) -> Path:
        return self.root / "away" / f"{self.blob(digest).name}.json"

    def download(self, sha256: str) -> Path:
        """Return the path of a download, whether it exists or not."""
        return self.root / "downloads" / "sha256" / _hex(sha256, sha256)

    def has_download(self, sha256: str, size: int) -> bool:
        """Return whether a download exists with this size, and mark it as used."""
        path = self.download(sha256)
        if not files.is_file(path, size):
            return False
        record = self.sparse(sha256)
        if record is not None and record.punched and not self.has_blobs(record):
            with contextlib.suppress(StoreError):  # of another user, or read-only
                self.drop_download(sha256)
            return False
        return files.touch(path)

    def drop_download(self, sha256: str) -> None:
        """Remove a download, so that the next build fetches it again."""
        path = self.download(sha256)
        with explained(path, "removed"):
            path.unlink(missing_ok=True)
        self.drop_sparse(sha256)

    def sparse(self, sha256: str) -> SparseDownload | None:
        """Return which parts of a download are in blobs too; None if none are known."""
        record = _load(self._sparse_path(sha256), SPARSE)
        if record is None or not record.is_sound or not files.is_file(self.download(sha256), record.size):
            return None
        return record

    def sparse_names(self) -> tuple[str, ...]:
        """Return the sha256 of all downloads with such a record, in hex."""
        return self._keys("sparse")

    def put_sparse(self, sha256: str, record: SparseDownload, *, is_alone: bool = False) -> None:
        """Record which parts of a download are in blobs too; `is_alone`: the caller holds the store."""
        self._save(self._sparse_path(sha256), SPARSE.dump_json(record), is_alone=is_alone)

    def drop_sparse(self, sha256: str) -> None:
        """Forget which parts of a download are in blobs too."""
        path = self._sparse_path(sha256)
        with explained(path, "removed"):
            path.unlink(missing_ok=True)

    def has_blobs(self, record: SparseDownload) -> bool:
        """Return whether all blobs that a download with holes needs are here."""
        return all(self.has_blob(name) for name in {extent.blob for extent in record.extents})

    def _sparse_path(self, sha256: str) -> Path:
        return self.root / "sparse" / f"{self.download(sha256).name}.json"

    def take_download(self, source: Path, sha256: str) -> None:
        """Add a file with checked content as a download: as a hard link if possible, else as a copy."""
        place = self.download(sha256)
        with self.work() as folder, explained(place):
            link_or_copy(source, folder / sha256)
            files.folder(place.parent)
            (folder / sha256).rename(place)

    def take_blob(self, source: Path, digest: str) -> None:
        """Add a file with checked content as a blob: as a hard link if possible, else as a copy."""
        place = self.blob(digest)
        if self.has_blob(digest, source.stat().st_size):
            return
        with self.work() as folder, explained(place):
            link_or_copy(source, folder / "blob")
            (folder / "blob").chmod(source.stat().st_mode & 0o444)
            files.folder(place.parent)
            (folder / "blob").rename(place)

    @contextlib.contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Open a new blob. Without `commit` it is discarded."""
        with self.in_use():
            with explained(self.root):
                path = files.folder(self.root / "work") / f"blob-{secrets.token_hex(8)}"
                # Read-only, because exported image folders share these files as hard links. The umask decides
                # who may read them.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            try:
                yield BlobWriter(self, descriptor, path)
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)

    def put_bytes(self, data: bytes) -> tuple[str, int]:
        """Add a small blob, unless it exists. Returns its digest and size."""
        digest = digest_of(data)
        if self.has_blob(digest, len(data)):
            return digest, len(data)
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    # Records

    def layer(self, key: str) -> LayerRecord | None:
        """Return the layer with a key; None if it was never made, or its blob is missing or damaged."""
        layer = _of_key(self.layer_path(key), key)
        if layer is None or layer.is_empty:
            return layer
        if not self.has_blob(layer.digest, layer.size):
            return None
        files.touch(self.blob(layer.digest))
        return layer

    def known_layer(self, key: str) -> LayerRecord | None:
        """Return the layer with a key, also if it came from a cache, and if its blob is only there."""
        layer = self.layer(key) or _of_key(self.taken_path(key), key)
        if layer is None or layer.is_empty or self.is_known(layer.digest, layer.size):
            return layer
        return None

    def put_layer(self, key: str, record: LayerRecord) -> None:
        """Record the layer with a key, as it was made here."""
        self._save(self.layer_path(key), LAYER.dump_json(KeptLayer(key=key, layer=record), indent=1))

    def put_taken(self, key: str, record: LayerRecord) -> None:
        """Record the layer with a key as a lock describes it, and as a cache has it.

        `layer` does not return it: what one lock says of a layer means nothing to another lock.
        """
        self._save(self.taken_path(key), LAYER.dump_json(KeptLayer(key=key, layer=record), indent=1))

    def image(self, name: str) -> ImageRecord | None:
        """Return the last image of a name; None if there is none, or a blob is missing or damaged.

        Layers may be in a registry only, see `away`.
        """
        record = _load(self.image_path(name), IMAGE)
        return record if record is not None and self._is_whole(record) else None

    def images(self, name: str) -> tuple[ImageRecord, ...]:
        """Return the last images of a name, one for each platform, sorted by platform."""
        keys = (key for key in self.image_names() if key == name or key.startswith(f"{name}--"))
        images = (image for key in keys if (image := self.image(key)))
        return tuple(sorted(images, key=lambda image: image.platform))

    def index(self, name: str) -> IndexRecord | None:
        """Return the index of a name's images; None if there is none, or a blob is missing."""
        record = _load(self._index_path(name), INDEX)
        if record is None or not self.has_blob(record.manifest):
            return None
        return record if all(self._is_whole(image) for image in record.images) else None

    def put_index(self, record: IndexRecord) -> None:
        """Record the index of a name's images, in place of an older one."""
        self._save(self._index_path(record.name), INDEX.dump_json(record, indent=1), durable=True)

    def forget_images(self, name: str, keep: Collection[str], *, index: bool) -> None:
        """Remove the records of a name's images for platforms not in `keep`, and the index unless `index`."""
        gone = [self.image_path(image.key) for image in self.images(name) if image.platform not in keep]
        with self.in_use():
            for path in (*gone, *(() if index else (self._index_path(name),))):
                with explained(path):
                    path.unlink(missing_ok=True)

    def _is_whole(self, record: ImageRecord) -> bool:
        return (
            self.has_blob(record.manifest)
            and self.has_blob(record.config)
            and all(self.is_known(layer.record.digest, layer.record.size) for layer in record.layers)
        )

    def layer_keys(self) -> tuple[str, ...]:
        """Return the keys of all layers with a record, complete or not."""
        return self._keys("layers")

    def taken_keys(self) -> tuple[str, ...]:
        """Return the keys of all layers that came from a cache."""
        return self._keys("taken")

    def _keys(self, folder: str) -> tuple[str, ...]:
        names = (path.stem for path in (self.root / folder).glob("*.json"))
        return tuple(sorted(name for name in names if _HEX.fullmatch(name)))

    def image_names(self) -> tuple[str, ...]:
        """Return the keys of all images with a record, complete or not."""
        names = (path.stem for path in (self.root / "images").glob("*.json"))
        return tuple(sorted(name for name in names if _NAME.fullmatch(name)))

    def layer_path(self, key: str) -> Path:
        """Return the path of a layer's record."""
        return self.root / "layers" / f"{_hex(key, key)}.json"

    def taken_path(self, key: str) -> Path:
        """Return the path of the record of a layer that came from a cache."""
        return self.root / "taken" / self.layer_path(key).name

    def image_path(self, name: str) -> Path:
        """Return the path of an image's record."""
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} is not an image's name")
        return self.root / "images" / f"{name}.json"

    def _index_path(self, name: str) -> Path:
        return self.root / "indexes" / self.image_path(name).name

    def put_image(self, record: ImageRecord) -> None:
        """Record an image, in place of an older one with the same name and platform."""
        self._save(self.image_path(record.key), IMAGE.dump_json(record, indent=1), durable=True)

    def report(self, digest: str) -> Path:
        """Return the path of a manifest's smoke report."""
        return self.root / "reports" / f"{_hex(digest.removeprefix('sha256:'), digest)}.json"

    def source(self, digest: str) -> Path:
        """Return the path of a manifest's recipe and lock."""
        return self.root / "sources" / f"{_hex(digest.removeprefix('sha256:'), digest)}.json"

    # Lifetimes

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """Yield a temporary folder on the store's file system, and remove it afterwards."""
        with self.in_use(), self.draft() as path:
            yield path

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Do as `work`, for somebody who holds the store already."""
        with explained(self.root):
            path = Path(tempfile.mkdtemp(dir=files.folder(self.root / "work"), prefix="work-"))
        try:
            yield path
        finally:
            remove_tree(path)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Hold the lock with this name; waits for other threads and processes."""
        name = hashlib.sha256(key.encode()).hexdigest()
        with self.in_use(), files.flock(self.root / "locks" / name, fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `cache prune` from removing anything; a build holds this from start to end.

        Any number of builds may hold it. The first one also removes leftovers of builds that were killed.
        """
        with self._in_use_lock(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store exclusively.

        Raises:
            StoreError: a build is running.

        """
        try:
            with self._in_use_lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except BlockingIOError:
            raise StoreError(
                "the store is in use by a running build",
                where=str(self.root),
                hint="try again when it has ended",
            ) from None

    @contextlib.contextmanager
    def _in_use_lock(self, kind: int) -> Iterator[None]:
        path = self.root / "locks" / "in-use"
        if kind == fcntl.LOCK_SH and files.is_read_only(self.root):
            yield  # nothing can be removed there, and writes give their own errors
            return
        with contextlib.suppress(BlockingIOError), files.flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for left in sorted((self.root / "work").glob("*")):
                log.info("removing %s, left by a build that was killed", left)
                remove_tree(left)
        with files.flock(path, kind):
            yield

    def _save(self, path: Path, data: bytes, *, durable: bool = False, is_alone: bool = False) -> None:
        if files.holds(path, data + b"\n"):
            files.touch(path)
            return
        with self.draft() if is_alone else self.work() as folder, explained(path):
            draft = folder / path.name
            with draft.open("xb") as file:
                file.write(data + b"\n")
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            files.folder(path.parent)
            draft.rename(path)


def _hex(text: str, named: str) -> str:
    # Paths in the store are made only of such digits, so no name can lead out of it.
    if not _HEX.fullmatch(text):
        raise StoreError(f"{named!r} is not a sha256 digest")
    return text


def _of_key(path: Path, key: str) -> LayerRecord | None:
    kept = _load(path, LAYER)
    return kept.layer if kept is not None and kept.key == key else None


def _load(path: Path, adapter: TypeAdapter[_Record]) -> _Record | None:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s is ignored: damaged, or of another version (%s)", path, type(error).__name__)
        return None
