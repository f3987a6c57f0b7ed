"""Looking after the store: what it holds, whether it is whole, and what may go.

What `imagebuilder cache ls`, `cache verify` and `cache prune` do.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.progress import Advance
from imagebuilder.store import ImageRecord, IndexRecord, Store, explained, remove_tree

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a store holds, in bytes and in files; `images` are the complete ones, by name."""

    blob_bytes: int
    blobs: int
    download_bytes: int
    downloads: int
    images: tuple[ImageRecord, ...]

    @property
    def total(self) -> int:
        return self.blob_bytes + self.download_bytes


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A file of the store that is not what its name says."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What `prune` removed: files, and their bytes."""

    files: int
    bytes: int


def usage(store: Store) -> Usage:
    """Measure a store; one that does not exist yet is empty."""
    blobs = [path.stat().st_size for path in _contents(store.root / "blobs")]
    downloads = [path.stat().st_size for path in _contents(store.root / "downloads")]
    return Usage(
        blob_bytes=sum(blobs),
        blobs=len(blobs),
        download_bytes=sum(downloads),
        downloads=len(downloads),
        images=tuple(image for name in store.image_names() if (image := store.image(name))),
    )


def verify(store: Store, advance: Advance, *, remove: bool = False) -> tuple[Damage, ...]:
    """Read everything and find what is not what its name says.

    Args:
        store: what to read.
        advance: told the bytes read; `usage(store).total` is all of them.
        remove: also remove what is damaged, so that the next build makes or fetches it again.

    Raises:
        StoreError: with `remove`, when a build is running, or a file cannot be removed.

    """
    if not store.root.is_dir():
        return ()
    with store.alone() if remove else store.in_use():
        damages = tuple(_damages(store, advance))
        for damage in damages if remove else ():
            log.info("removing %s: %s", damage.path, damage.reason)
            with explained(damage.path):
                damage.path.unlink(missing_ok=True)
    return damages


def prune(store: Store, keep_bytes: int = 0) -> Pruned:
    """Remove until at most `keep_bytes` of blobs and downloads remain: what is dear to get again goes last.

    First layers that no image uses, then downloads (they can be fetched), then whole images; among each, what
    was not used for longest. Records without their blob go with it.

    Raises:
        StoreError: a build is running, or a file cannot be removed.

    """
    if not store.root.is_dir():
        return Pruned(files=0, bytes=0)
    with store.alone():
        excess = usage(store).total - keep_bytes
        files = freed = 0
        for group in _by_worth(store):
            if freed >= excess:
                break
            for path in group:
                size = path.stat().st_size
                with explained(path):
                    path.unlink()
                files, freed = files + 1, freed + size
        _drop_records(store)
    return Pruned(files=files, bytes=freed)


def _contents(folder: Path) -> Iterator[Path]:
    """List the files of a kind, whatever they are called: a download that stopped halfway counts too."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _damages(store: Store, advance: Advance) -> Iterator[Damage]:
    for kind in ("blobs", "downloads"):
        for path in _contents(store.root / kind):
            digest = hashlib.sha256()
            try:
                with path.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                        advance(len(chunk))
            except OSError as error:
                yield Damage(path=path, reason=f"cannot be read: {error.strerror}")
                continue
            if len(path.name) == digest.digest_size * 2 and digest.hexdigest() != path.name:
                yield Damage(path=path, reason=f"its sha256 is {digest.hexdigest()}")
    for key in store.layer_keys():
        if store.layer(key) is None:
            reason = "is the record of a layer that is not there, or cannot be read"
            yield Damage(path=store.layer_path(key), reason=reason)
    for name in store.image_names():
        if store.image(name) is None:
            path = store.root / "images" / f"{name}.json"
            yield Damage(
                path=path, reason="is the record of an image that is not complete, or cannot be read"
            )


def _by_worth(store: Store) -> Iterator[tuple[Path, ...]]:
    """Group files that go together, the least worth first."""
    images = [image for name in store.image_names() if (image := store.image(name))]
    used = {path for image in images for path in _blobs_of(image, store)}
    used |= {store.blob(index.manifest) for index in _indexes(images, store)}
    for path in _oldest_first(set(_contents(store.root / "blobs")) - used):
        yield (path,)
    for path in _oldest_first(_contents(store.root / "downloads")):
        yield (path,)
    # An image goes as a whole, but for the layers that another one still uses.
    for path in _oldest_first(store.image_path(image.key) for image in images):
        gone = next(image for image in images if image.key == path.stem)
        images.remove(gone)
        kept = {blob for image in images for blob in _blobs_of(image, store)}
        yield tuple(sorted(_blobs_of(gone, store) - kept))


def _indexes(images: Iterable[ImageRecord], store: Store) -> tuple[IndexRecord, ...]:
    names = sorted({image.name for image in images})
    return tuple(index for name in names if (index := store.index(name)))


def _blobs_of(image: ImageRecord, store: Store) -> set[Path]:
    digests = {layer.record.digest for layer in image.layers} | {image.config, image.manifest}
    return {store.blob(digest) for digest in digests}


def _oldest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path))


def _drop_records(store: Store) -> None:
    """Remove records whose blobs are gone; reports, sources and what was found in layers, too."""
    for key in store.layer_keys():
        if store.layer(key) is None:
            remove_tree(store.layer_path(key))
    for name in store.image_names():
        if store.image(name) is None:
            remove_tree(store.image_path(name))
    for path in sorted((store.root / "indexes").glob("*.json")):
        if not any(index.name == path.stem for index in _indexes(store.images(path.stem), store)):
            remove_tree(path)
    kinds = ("reports", "scans", "sources")
    for path in sorted(path for kind in kinds for path in (store.root / kind).glob("*.json")):
        if not (store.root / "blobs" / "sha256" / path.stem).exists():
            remove_tree(path)
