"""Maintain the store: measure it, verify it, and remove files that are no longer needed.

The verbs `imagebuilder cache ls`, `cache du`, `cache verify` and `cache prune` use this.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import tarstream
from imagebuilder.core.progress import Advance
from imagebuilder.store import (
    ImageRecord,
    IndexRecord,
    LayerRecord,
    Store,
    explained,
    remove_tree,
    sparse,
)

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The content of a store in bytes and files; `images` are the complete images, by name."""

    blob_bytes: int
    blobs: int
    download_bytes: int
    downloads: int
    images: tuple[ImageRecord, ...]

    @property
    def total(self) -> int:
        return self.blob_bytes + self.download_bytes


@dataclass(frozen=True, kw_only=True)
class Share:
    """The blobs of one recipe's images, of all platforms, in bytes; `alone` are those that no other uses."""

    recipe: str
    bytes: int
    alone: int


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What recipes need of a store: their images by name, layers by key, and downloads by hex sha256."""

    images: frozenset[str]
    layers: frozenset[str]
    downloads: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A file of the store whose content does not match its name."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """The files that `prune` removed, and their bytes."""

    files: int
    bytes: int


def usage(store: Store) -> Usage:
    """Measure a store; a store that does not exist yet is empty."""
    blobs = [path.stat().st_size for path in _contents(store.root / "blobs")]
    downloads = [_size(path, store) for path in _contents(store.root / "downloads")]
    return Usage(
        blob_bytes=sum(blobs),
        blobs=len(blobs),
        download_bytes=sum(downloads),
        downloads=len(downloads),
        images=tuple(image for name in store.image_names() if (image := store.image(name))),
    )


def shares(store: Store) -> tuple[tuple[Share, ...], int]:
    """Measure the blobs of each recipe's images, sorted by recipe, and those that are in no image."""
    blobs: dict[str, set[Path]] = {}
    for image in usage(store).images:
        index = store.index(image.name)
        own = _blobs_of(image, store) | ({store.blob(index.manifest)} if index else set())
        blobs.setdefault(image.name, set()).update(own)
    users = Counter(path for own in blobs.values() for path in own)
    sizes = {path: path.stat().st_size for path in users}
    found = tuple(
        Share(
            recipe=name,
            bytes=sum(sizes[path] for path in own),
            alone=sum(sizes[path] for path in own if users[path] == 1),
        )
        for name, own in sorted(blobs.items())
    )
    every = sum(path.stat().st_size for path in _contents(store.root / "blobs"))
    return found, every - sum(sizes.values())


def verify(store: Store, advance: Advance, *, remove: bool = False) -> tuple[Damage, ...]:
    """Read all files and find those whose content does not match their name.

    Args:
        store: the store to read.
        advance: called with the bytes read; `usage(store).total` is their sum.
        remove: also remove damaged files, so that the next build makes or downloads them again.

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


def prune(store: Store, keep_bytes: int = 0, *, dry_run: bool = False) -> Pruned:
    """Remove files until at most `keep_bytes` of blobs and downloads remain, the cheapest to replace first.

    It removes layers that no image uses, then downloads, then whole images, and in each group first those
    that were unused for longest. Records whose blob is gone are removed too.

    Args:
        store: the store to prune.
        keep_bytes: the bytes that may remain.
        dry_run: only report what would be removed.

    Raises:
        StoreError: a build is running, or a file cannot be removed.

    """
    if not store.root.is_dir():
        return Pruned(files=0, bytes=0)
    with store.in_use() if dry_run else store.alone():
        excess = usage(store).total - keep_bytes
        files = freed = 0
        for group in _by_worth(store):
            if freed >= excess:
                break
            for path in group:
                size = _size(path, store)
                if not dry_run:
                    with explained(path):
                        path.unlink()
                files, freed = files + 1, freed + size
        if not dry_run:
            _drop_records(store)
    return Pruned(files=files, bytes=freed)


def prune_to(store: Store, needed: Needed, *, dry_run: bool = False) -> Pruned:
    """Remove everything that recipes do not need, also downloads whose layers are made.

    Args:
        store: the store to prune.
        needed: what to keep.
        dry_run: only report what would be removed.

    Raises:
        StoreError: a build is running, or a file cannot be removed.

    """
    if not store.root.is_dir():
        return Pruned(files=0, bytes=0)
    with store.in_use() if dry_run else store.alone():
        images = [image for image in usage(store).images if image.name in needed.images]
        kept = {path for image in images for path in _blobs_of(image, store)}
        kept |= {store.blob(index.manifest) for index in _indexes(images, store)}
        kept |= {store.blob(record.digest) for key in needed.layers if (record := store.layer(key))}
        kept |= {store.download(sha256) for sha256 in needed.downloads}
        records = filter(None, map(store.sparse, needed.downloads))
        kept |= {store.blob(e.blob) for record in records if record.punched for e in record.extents}
        kinds = (store.root / "blobs", store.root / "downloads")
        gone = [path for kind in kinds for path in _contents(kind) if path not in kept]
        freed = sum(_size(path, store) for path in gone)
        for path in () if dry_run else gone:
            with explained(path):
                path.unlink()
        if not dry_run:
            _drop_records(store)
    return Pruned(files=len(gone), bytes=freed)


def _contents(folder: Path) -> Iterator[Path]:
    """List the files of a kind, whatever their names: also incomplete downloads."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _size(path: Path, store: Store) -> int:
    """Count the bytes of a file on the disk: of a download without those that only a blob has."""
    record = sparse.holes(store, path)
    return path.stat().st_size - (record.spared if record else 0)


def _damages(store: Store, advance: Advance) -> Iterator[Damage]:
    layers = {key: store.layer(key) for key in store.layer_keys()}
    unpacked = {record.digest: ("", 0) for record in layers.values() if record and not record.is_empty}
    for kind in ("blobs", "downloads"):
        for path in _contents(store.root / kind):
            name = f"sha256:{path.name}"
            try:
                if kind == "blobs" and name in unpacked:
                    digest, diff_id, size = tarstream.digests(path, advance)
                    unpacked[name] = (diff_id, size)
                else:
                    digest = _digest(path, store, advance)
            except OSError as error:
                yield Damage(path=path, reason=f"cannot be read: {error.strerror}")
                continue
            if len(name) == len(digest) and digest != name:
                unpacked.pop(name, None)
                yield Damage(path=path, reason=f"its sha256 is {digest.removeprefix('sha256:')}")
    for key, record in layers.items():
        # Remove a record together with its damaged blob.
        if (record is None or record.digest in unpacked) and (reason := _layer_problem(record, unpacked)):
            yield Damage(path=store.layer_path(key), reason=reason)
    for name in store.image_names():
        if store.image(name) is None:
            path = store.root / "images" / f"{name}.json"
            yield Damage(
                path=path, reason="is the record of an image that is not complete, or cannot be read"
            )


def _layer_problem(record: LayerRecord | None, unpacked: Mapping[str, tuple[str, int]]) -> str:
    """Return what is wrong with a layer's record; `unpacked` has the true values of the blobs."""
    if record is None:
        return "is the record of a layer that is not there, or cannot be read"
    diff_id, size = unpacked[record.digest]
    if not diff_id:
        return "is the record of a layer that does not unpack"
    if diff_id != record.diff_id:
        return f"says another diffID than its blob has: {diff_id}"
    if size != record.unpacked:
        return f"says another size than its blob unpacks to: {size}"
    return ""


def _digest(path: Path, store: Store, advance: Advance) -> str:
    digest = hashlib.sha256()
    if holes := sparse.holes(store, path):
        for chunk in sparse.content(store, path.name, holes):
            digest.update(chunk)
        advance(_size(path, store))
        return f"sha256:{digest.hexdigest()}"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return f"sha256:{digest.hexdigest()}"


def _by_worth(store: Store) -> Iterator[tuple[Path, ...]]:
    """Group files that are removed together, the least valuable first."""
    images = [image for name in store.image_names() if (image := store.image(name))]
    used = {path for image in images for path in _blobs_of(image, store)}
    used |= {store.blob(index.manifest) for index in _indexes(images, store)}
    for path in _oldest_first(set(_contents(store.root / "blobs")) - used):
        yield (path,)
    for path in _oldest_first(_contents(store.root / "downloads")):
        yield (path,)
    # An image is removed as a whole, except for layers that another image still uses.
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
    return {path for digest in digests if (path := store.blob(digest)).exists()}  # layers may be away


def _oldest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path))


def _drop_records(store: Store) -> None:
    """Remove records whose blobs are gone, also reports, sources and results of secret scans.

    Records of empty layers stay: without them the next build would download wheels to find out again.
    Downloads with holes go with the blobs that they need.
    """
    _drop_layers(store)
    for sha256 in store.sparse_names():
        record = store.sparse(sha256)
        if record is None or not store.has_blobs(record):
            drop = store.drop_download if record and record.punched else store.drop_sparse
            drop(sha256)
    for name in store.image_names():
        if store.image(name) is None:
            remove_tree(store.image_path(name))
    for path in sorted((store.root / "indexes").glob("*.json")):
        if not any(index.name == path.stem for index in _indexes(store.images(path.stem), store)):
            remove_tree(path)
    kinds = ("licences", "reports", "scans", "sources")
    for path in sorted(path for kind in kinds for path in (store.root / kind).glob("*.json")):
        kept = (store.root / "blobs" / "sha256" / path.stem, store.root / "away" / path.name)
        if not any(file.exists() for file in kept):
            remove_tree(path)


def _drop_layers(store: Store) -> None:
    """Remove records of layers whose blobs are gone: those made here, and those from a cache."""
    gone = [store.layer_path(key) for key in store.layer_keys() if store.layer(key) is None]
    gone += [store.taken_path(key) for key in store.taken_keys() if store.known_layer(key) is None]
    for path in gone:
        remove_tree(path)
