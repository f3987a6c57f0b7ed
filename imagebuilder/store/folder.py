"""The folder of a store, and the rules for touching it."""

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
from imagebuilder.store.records import IMAGE, INDEX, LAYER, ImageRecord, IndexRecord, KeptLayer, LayerRecord

log = logging.getLogger(__name__)

_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_Record = TypeVar("_Record")


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
            place.parent.mkdir(parents=True, exist_ok=True)
            # Over an older one too: if that was torn by a power cut, this mends it.
            self._path.rename(place)
        return digest, self._size


class Store:
    """The folder and the rules for touching it; holds no state besides its path, so threads may share it."""

    def __init__(self, root: Path) -> None:
        """Name the folder; it is made on the first write."""
        # Commands that work in folders of their own get paths of it.
        self.root = root.absolute()

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
        return files.is_file(self.blob(digest), size)

    def download(self, sha256: str) -> Path:
        """Name the place of a download, whether it is there or not."""
        return self.root / "downloads" / "sha256" / _hex(sha256, sha256)

    def has_download(self, sha256: str, size: int) -> bool:
        """Tell whether a download is there in full, and mark it as used."""
        path = self.download(sha256)
        return files.is_file(path, size) and files.touch(path)

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
            files.folder(place.parent)
            (folder / sha256).rename(place)

    def take_blob(self, source: Path, digest: str) -> None:
        """Make a checked file a blob, as a hard link where that can be."""
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
        """Open a new blob; left without `commit`, nothing remains of it."""
        with self.in_use():
            with explained(self.root):
                path = files.folder(self.root / "work") / f"blob-{secrets.token_hex(8)}"
                # Read-only, because exported image folders share these files as hard links; who may read them
                # is for the umask to say.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            try:
                yield BlobWriter(self, descriptor, path)
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)

    def put_bytes(self, data: bytes) -> tuple[str, int]:
        """Store a small blob: its digest and size. Nothing is written when it is there."""
        digest = digest_of(data)
        if self.has_blob(digest, len(data)):
            return digest, len(data)
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    # Records

    def layer(self, key: str) -> LayerRecord | None:
        """Look up what a layer's key gave; None when it was never made, or its blob is gone or torn."""
        kept = _load(self.layer_path(key), LAYER)
        if kept is None or kept.key != key:
            return None
        if kept.layer.is_empty:
            return kept.layer
        if not self.has_blob(kept.layer.digest, kept.layer.size):
            return None
        files.touch(self.blob(kept.layer.digest))
        return kept.layer

    def put_layer(self, key: str, record: LayerRecord) -> None:
        """Remember what a layer's key gave."""
        self._save(self.layer_path(key), LAYER.dump_json(KeptLayer(key=key, layer=record), indent=1))

    def image(self, name: str) -> ImageRecord | None:
        """Look up the last image of a name; None when there is none, or a blob of it is gone or torn."""
        record = _load(self.image_path(name), IMAGE)
        return record if record is not None and self._is_whole(record) else None

    def images(self, name: str) -> tuple[ImageRecord, ...]:
        """Look up the last images of a name, of every platform that it was built for; sorted by platform."""
        keys = (key for key in self.image_names() if key == name or key.startswith(f"{name}--"))
        found = (image for key in keys if (image := self.image(key)))
        return tuple(sorted(found, key=lambda image: image.platform))

    def index(self, name: str) -> IndexRecord | None:
        """Look up what joins the images of a name; None when there is nothing, or a blob is gone."""
        record = _load(self._index_path(name), INDEX)
        if record is None or not self.has_blob(record.manifest):
            return None
        return record if all(self._is_whole(image) for image in record.images) else None

    def put_index(self, record: IndexRecord) -> None:
        """Remember what joins the images of a name; an older one is forgotten."""
        self._save(self._index_path(record.name), INDEX.dump_json(record, indent=1), durable=True)

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
        self._save(self.image_path(record.key), IMAGE.dump_json(record, indent=1), durable=True)

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
                path = Path(tempfile.mkdtemp(dir=files.folder(self.root / "work"), prefix="work-"))
            try:
                yield path
            finally:
                remove_tree(path)

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Wait until nobody else, in this process or another, holds this key; then hold it."""
        name = hashlib.sha256(key.encode()).hexdigest()
        with self.in_use(), files.flock(self.root / "locks" / name, fcntl.LOCK_EX):
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
        if kind == fcntl.LOCK_SH and files.is_read_only(self.root):
            yield  # nobody can remove anything there; whoever writes is told so then
            return
        with contextlib.suppress(BlockingIOError), files.flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for left in sorted((self.root / "work").glob("*")):
                log.info("removing %s, left by a build that was killed", left)
                remove_tree(left)
        with files.flock(path, kind):
            yield

    def _save(self, path: Path, data: bytes, *, durable: bool = False) -> None:
        if files.holds(path, data + b"\n"):
            files.touch(path)
            return
        with self.work() as folder, explained(path):
            draft = folder / path.name
            with draft.open("xb") as file:
                file.write(data + b"\n")
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            files.folder(path.parent)
            draft.rename(path)


def _hex(text: str, named: str) -> str:
    # Nothing else is ever joined to a folder of the store, so no name can lead out of it.
    if not _HEX.fullmatch(text):
        raise StoreError(f"{named!r} is not a sha256 digest")
    return text


def _load(path: Path, adapter: TypeAdapter[_Record]) -> _Record | None:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s is damaged, or of another version, and absent: %s", path, type(error).__name__)
        return None
