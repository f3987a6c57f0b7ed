"""The store: blobs, downloads and records under one folder, shared by all builds of a user.

    blobs/sha256/<hex>       layers, image configs and manifests
    downloads/sha256/<hex>   wheels and Debian packages, as fetched
    layers/<key>.json        which blob a layer's key gave (`LayerRecord`)
    images/<name>.json       the last image of that name (`ImageRecord`); for another platform than
                             linux/amd64 `<name>--linux-arm64.json`
    indexes/<name>.json      what joins the platforms' images of that name (`IndexRecord`)
    reports/<hex>.json       the smoke report of a manifest
    scans/<hex>.json         what the search for secrets found in a layer (`leaks.image`)
    pushed/<hex>.json        which repository of a registry has a blob (`registry.sources`)
    sources/<hex>.json       the recipe and the lock of a manifest
    locks/  work/            what running builds hold; nothing that outlives them

Everything is written beside its place and renamed into it, so a reader sees a whole file or none, whoever is
killed when. It is a cache: what a power cut tears (a blob shorter than its record says, a broken record)
counts as absent and is made again, so only the image record, which is replaced in place, is worth an fsync.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from imagebuilder import platforms
from imagebuilder.errors import StoreError

log = logging.getLogger(__name__)

_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_HINTS = {
    errno.ENOSPC: "free some space, or run: imagebuilder cache prune",
    errno.EDQUOT: "your quota is used up; run: imagebuilder cache prune",
    errno.EACCES: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EPERM: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EROFS: "the file system is read-only; set IMAGEBUILDER_STORE to another folder",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
}
_Record = TypeVar("_Record")

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0)]


@checked_dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """One layer as made: digest and size of its blob, diffID and size of the tar inside, media type."""

    digest: Digest
    diff_id: Digest
    size: Size
    unpacked: Size
    media_type: str


@checked_dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """A layer in its image: what people call it, and the pin that it belongs to."""

    record: LayerRecord
    title: str
    component: str


@checked_dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image: its blobs' digests, its tag and the checksum of the lock that it was made from.

    Attributes:
        name: the recipe's name.
        manifest, config: digests; the manifest's is the image's.
        size: bytes of all its blobs: manifest, config and compressed layers.
        tag: its own; the first of `tags`.
        lock: the lock's checksum, hex sha256.
        layers: the lowest first.
        tags: to push it under, as the recipe said when it was built; empty in records of older versions.
        platform: that it is for, as in `linux/arm64`.
        siblings: all platforms of its recipe.

    """

    name: str
    manifest: Digest
    config: Digest
    size: Size
    tag: str
    lock: str
    layers: tuple[ImageLayer, ...]
    tags: tuple[str, ...] = ()
    platform: str = platforms.DEFAULT
    siblings: tuple[str, ...] = (platforms.DEFAULT,)

    @property
    def key(self) -> str:
        """What its record is called. No recipe's name has two dashes in a row."""
        if self.platform == platforms.DEFAULT:
            return self.name
        return f"{self.name}--{self.platform.replace('/', '-')}"

    @property
    def images(self) -> tuple[ImageRecord, ...]:
        """The images that a push sends: itself."""
        return (self,)


@checked_dataclass(frozen=True, kw_only=True)
class IndexRecord:
    """The images of one recipe for several platforms, and the image index that joins them.

    Attributes:
        name: the recipe's name.
        manifest: digest of the index.
        tag: its own; the first of `tags`.
        tags: to push it under.
        lock: checksum of the lock file, hex sha256.
        images: by platform, sorted by it.

    """

    name: str
    manifest: Digest
    tag: str
    tags: tuple[str, ...]
    lock: str
    images: tuple[ImageRecord, ...]

    @property
    def size(self) -> int:
        """Bytes of all images' blobs, those that several share counted once."""
        layers = {layer.record.digest: layer.record.size for image in self.images for layer in image.layers}
        own = (image.size - sum(layer.record.size for layer in image.layers) for image in self.images)
        return sum(layers.values()) + sum(own)


@checked_dataclass(frozen=True, kw_only=True)
class _KeptLayer:
    """A layer's record as it is written: with its key, so that it says nothing under another one's name."""

    key: str
    layer: LayerRecord


_LAYER = TypeAdapter(_KeptLayer)
_IMAGE = TypeAdapter(ImageRecord)
_INDEX = TypeAdapter(IndexRecord)


class DamagedDownloadError(StoreError):
    """A download that is no longer what its name says; a build removes it, and fetches it again.

    `name` is what people call it; `sha256` what it was, in hex: its name in the store.
    """

    def __init__(self, name: str, sha256: str, found: str) -> None:
        super().__init__(
            f"is not the locked file: its sha256 is {found}, and not {sha256}",
            where=name,
            hint="run: imagebuilder cache verify --remove",
        )
        self.name, self.sha256 = name, sha256


class BlobWriter:
    """A blob in the making. Its digest is computed while it is written; `commit` puts it in its place."""

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
        """Digest of what was written so far."""
        return f"sha256:{self._hash.hexdigest()}"

    @property
    def size(self) -> int:
        """Bytes that were written so far."""
        return self._size

    def commit(self) -> tuple[str, int]:
        """Finish the blob: its digest and its size in bytes."""
        digest = self.digest
        place = self._store.blob(digest)
        with explained(place):
            # Read-only, because exported image folders share these files as hard links.
            os.fchmod(self._descriptor, 0o444)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Over an older one too: if that was torn by a power cut, this mends it.
            self._path.rename(place)
        return digest, self._size


class Store:
    """The folder and the rules for touching it; holds no state besides its path, so threads may share it."""

    def __init__(self, root: Path) -> None:
        """Name the folder; it is made on the first write."""
        self.root = root

    @classmethod
    def default(cls) -> Store:
        """Take the store that the environment names, else the one in the user's cache."""
        named = os.environ.get("IMAGEBUILDER_STORE")
        if named:
            return cls(Path(named).expanduser().absolute())
        cache = os.environ.get("XDG_CACHE_HOME", "")
        # The specification says that a relative path there is to be ignored.
        base = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
        return cls(base / "imagebuilder")

    # Blobs and downloads

    def blob(self, digest: str) -> Path:
        """Name the place of a blob, whether it is there or not."""
        return self.root / "blobs" / "sha256" / _hex(digest.removeprefix("sha256:"), digest)

    def has_blob(self, digest: str, size: int | None = None) -> bool:
        """Tell whether a blob is there, and has the size that is known of it."""
        return _is_file(self.blob(digest), size)

    def download(self, sha256: str) -> Path:
        """Name the place of a download, whether it is there or not."""
        return self.root / "downloads" / "sha256" / _hex(sha256, sha256)

    def has_download(self, sha256: str, size: int) -> bool:
        """Tell whether a download is there in full, and mark it as used."""
        path = self.download(sha256)
        return _is_file(path, size) and _touch(path)

    def drop_download(self, sha256: str) -> None:
        """Remove a download, so that the next build fetches it."""
        path = self.download(sha256)
        with explained(path, "removed"):
            path.unlink(missing_ok=True)

    def take_download(self, source: Path, sha256: str) -> None:
        """Put a checked download of another place into this store, as a hard link where that can be."""
        place = self.download(sha256)
        with self.work() as folder, explained(place):
            link_or_copy(source, folder / sha256)
            _folder(place.parent)
            (folder / sha256).rename(place)

    def take_blob(self, source: Path, digest: str) -> None:
        """Make a checked file a blob, as a hard link where that can be."""
        place = self.blob(digest)
        if self.has_blob(digest, source.stat().st_size):
            return
        with self.work() as folder, explained(place):
            link_or_copy(source, folder / "blob")
            (folder / "blob").chmod(0o444)
            _folder(place.parent)
            (folder / "blob").rename(place)

    @contextlib.contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Open a new blob; left without `commit`, nothing remains of it."""
        with self.in_use():
            with explained(self.root):
                descriptor, name = tempfile.mkstemp(dir=_folder(self.root / "work"), prefix="blob-")
            try:
                yield BlobWriter(self, descriptor, Path(name))
            finally:
                os.close(descriptor)
                Path(name).unlink(missing_ok=True)

    def put_bytes(self, data: bytes) -> tuple[str, int]:
        """Store a small blob: its digest and size. Nothing is written when it is there."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self.has_blob(digest, len(data)):
            return digest, len(data)
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    # Records

    def layer(self, key: str) -> LayerRecord | None:
        """Look up what a layer's key gave; None when it was never made, or its blob is gone or torn."""
        kept = _load(self.layer_path(key), _LAYER)
        if kept is None or kept.key != key or not self.has_blob(kept.layer.digest, kept.layer.size):
            return None
        _touch(self.blob(kept.layer.digest))
        return kept.layer

    def put_layer(self, key: str, record: LayerRecord) -> None:
        """Remember what a layer's key gave."""
        self._save(self.layer_path(key), _LAYER.dump_json(_KeptLayer(key=key, layer=record), indent=1))

    def image(self, name: str) -> ImageRecord | None:
        """Look up the last image of a name; None when there is none, or a blob of it is gone or torn."""
        record = _load(self.image_path(name), _IMAGE)
        return record if record is not None and self._is_whole(record) else None

    def images(self, name: str) -> tuple[ImageRecord, ...]:
        """Look up the last images of a name, of every platform that it was built for; sorted by platform."""
        keys = (key for key in self.image_names() if key == name or key.startswith(f"{name}--"))
        found = (image for key in keys if (image := self.image(key)))
        return tuple(sorted(found, key=lambda image: image.platform))

    def index(self, name: str) -> IndexRecord | None:
        """Look up what joins the images of a name; None when there is nothing, or a blob is gone."""
        record = _load(self._index_path(name), _INDEX)
        if record is None or not self.has_blob(record.manifest):
            return None
        return record if all(self._is_whole(image) for image in record.images) else None

    def put_index(self, record: IndexRecord) -> None:
        """Remember what joins the images of a name; an older one is forgotten."""
        self._save(self._index_path(record.name), _INDEX.dump_json(record, indent=1), durable=True)

    def forget_images(self, name: str, keep: Collection[str], *, index: bool) -> None:
        """Forget the images of a name for other platforms than these; and the index unless it is to stay."""
        gone = [self.image_path(image.key) for image in self.images(name) if image.platform not in keep]
        with self.in_use():
            for path in (*gone, *(() if index else (self._index_path(name),))):
                with explained(path):
                    path.unlink(missing_ok=True)

    def _is_whole(self, record: ImageRecord) -> bool:
        return (
            self.has_blob(record.manifest)
            and self.has_blob(record.config)
            and all(self.has_blob(layer.record.digest, layer.record.size) for layer in record.layers)
        )

    def layer_keys(self) -> tuple[str, ...]:
        """Name all layers that have a record, complete or not."""
        names = (path.stem for path in (self.root / "layers").glob("*.json"))
        return tuple(sorted(name for name in names if _HEX.fullmatch(name)))

    def image_names(self) -> tuple[str, ...]:
        """Name the keys of all images that have a record, complete or not."""
        names = (path.stem for path in (self.root / "images").glob("*.json"))
        return tuple(sorted(name for name in names if _NAME.fullmatch(name)))

    def layer_path(self, key: str) -> Path:
        """Name the place of a layer's record."""
        return self.root / "layers" / f"{_hex(key, key)}.json"

    def image_path(self, name: str) -> Path:
        """Name the place of an image's record."""
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} is not an image's name")
        return self.root / "images" / f"{name}.json"

    def _index_path(self, name: str) -> Path:
        return self.root / "indexes" / self.image_path(name).name

    def put_image(self, record: ImageRecord) -> None:
        """Remember an image under its name and platform; an older one of both is forgotten."""
        self._save(self.image_path(record.key), _IMAGE.dump_json(record, indent=1), durable=True)

    def report(self, digest: str) -> Path:
        """Name the place of the smoke report of a manifest."""
        return self.root / "reports" / f"{_hex(digest.removeprefix('sha256:'), digest)}.json"

    def source(self, digest: str) -> Path:
        """Name the place of the recipe and the lock of a manifest."""
        return self.root / "sources" / f"{_hex(digest.removeprefix('sha256:'), digest)}.json"

    # Lifetimes

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """Lend a temporary folder on the store's file system; it is always removed."""
        with self.in_use():
            with explained(self.root):
                path = Path(tempfile.mkdtemp(dir=_folder(self.root / "work"), prefix="work-"))
            try:
                yield path
            finally:
                remove_tree(path)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Wait until nobody else, in this process or another, holds this key; then hold it."""
        name = hashlib.sha256(key.encode()).hexdigest()
        with self.in_use(), _flock(self.root / "locks" / name, fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `cache prune` from removing anything meanwhile; a build holds this from start to end.

        Any number may hold it at once. The first to come also clears away what killed builds left behind.
        """
        with self._in_use_lock(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store with no build running.

        Raises:
            StoreError: somebody is building.

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
        if kind == fcntl.LOCK_SH and _is_read_only(self.root):
            yield  # nobody can remove anything there; whoever writes is told so then
            return
        with contextlib.suppress(BlockingIOError), _flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for left in sorted((self.root / "work").glob("*")):
                log.info("removing %s, left by a build that was killed", left)
                remove_tree(left)
        with _flock(path, kind):
            yield

    def _save(self, path: Path, data: bytes, *, durable: bool = False) -> None:
        if _holds(path, data + b"\n"):
            _touch(path)
            return
        with self.work() as folder, explained(path):
            draft = folder / path.name
            with draft.open("xb") as file:
                file.write(data + b"\n")
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            _folder(path.parent)
            draft.rename(path)


@contextlib.contextmanager
def explained(path: Path, done: str = "written") -> Iterator[None]:
    """Turn what the file system refuses into a StoreError that says what to do.

    Args:
        path: what is touched.
        done: what was to be done with it, as a participle.

    Raises:
        StoreError: with the path, and a hint for full disks, quotas and permissions.

    """
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot be {done}: {os.strerror(error.errno or 0)}",
            where=str(path),
            hint=_HINTS.get(error.errno or 0, "check the disk; IMAGEBUILDER_STORE names another folder"),
        ) from error


def check_bytes(path: Path, sha256: str, name: str) -> None:
    """Read a download through, for the disk may have rotted since its bytes were checked.

    Args:
        path: the file.
        sha256: what it has to be, in hex.
        name: what messages call it.

    Raises:
        DamagedDownloadError: it is something else by now.
        StoreError: it cannot be read.

    """
    with explained(path, "read"), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DamagedDownloadError(name, sha256, found)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second place: a hard link, or a copy where links cannot be.

    Raises:
        OSError: neither can be written.

    """
    try:
        target.hardlink_to(source)
    except OSError as error:
        # Another file system, one without hard links, too many links, or links that the kernel protects.
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP}:
            raise
        shutil.copyfile(source, target)


def remove_tree(path: Path) -> None:
    """Remove a file or folder, folders without write permission included; what cannot go is logged."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


def _hex(text: str, named: str) -> str:
    # Nothing else is ever joined to a folder of the store, so no name can lead out of it.
    if not _HEX.fullmatch(text):
        raise StoreError(f"{named!r} is not a sha256 digest")
    return text


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _is_file(path: Path, size: int | None) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (size is None or status.st_size == size)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _touch(path: Path) -> bool:
    """Note the time of use, by which `cache prune` chooses; a store that is only readable works too."""
    with contextlib.suppress(OSError):
        os.utime(path)
    return True


def _load(path: Path, adapter: TypeAdapter[_Record]) -> _Record | None:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s is damaged and counts as absent: %s", path, type(error).__name__)
        return None


@contextlib.contextmanager
def _flock(path: Path, kind: int) -> Iterator[Any]:
    """Hold a lock between processes and threads; the kernel frees it when its holder dies."""
    with explained(path):
        _folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with explained(path):
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
