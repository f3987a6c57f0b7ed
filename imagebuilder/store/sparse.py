"""Wheels that the store keeps once: their large files only in the layer that was made of them.

A layer of wheels holds the compressed bytes of each file as the wheel has them. So a downloaded wheel may
have holes where these bytes are: it is a sparse file of the same size, whose names, metadata and modules are
read as before. `fill` puts the bytes back, from the layer's blob, before something reads all of it. What is
filled is checked against its sha256, and a wheel that cannot be filled is downloaded again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from imagebuilder.errors import StoreError
from imagebuilder.store.files import explained
from imagebuilder.store.folder import Store
from imagebuilder.store.records import Extent, SparseDownload

log = logging.getLogger(__name__)

# Smaller files stay in the wheel. Nearly all bytes of large wheels are in a few libraries.
LEAST = 256 << 10
_CHUNK = 1 << 20
_HEX = re.compile(r"[0-9a-f]{64}")


def note(store: Store, sha256: str, size: int, extents: Iterable[Extent]) -> None:
    """Record which bytes of a download are in blobs too; they stay in the download until `squeeze`.

    Args:
        store: has the download and the blobs.
        sha256: of the download, in hex.
        size: of the download, in bytes.
        extents: they do not overlap.

    """
    found = tuple(extents)
    if not found or not store.has_download(sha256, size):
        return
    with store.exclusive(f"download {sha256}"):
        old = store.sparse(sha256)
        others = (
            [e for e in old.extents if not any(map(e.overlaps, found))] if old and not old.punched else []
        )
        rows = sorted((*others, *found), key=lambda extent: extent.start)
        store.put_sparse(sha256, SparseDownload(size=size, punched=False, extents=tuple(rows)))


def squeeze(store: Store) -> int:
    """Take out of all downloads what blobs have too; returns the bytes saved.

    This does nothing while another build runs, which may read the same files, nor where it cannot write, nor
    with another store's downloads, whose records are not here.
    """
    saved, folder = 0, store.root / "downloads" / "sha256"
    if folder.resolve() != store.root.resolve() / "downloads" / "sha256":
        return 0
    try:
        with store.alone():
            for sha256 in store.sparse_names():
                record = store.sparse(sha256)
                if record is not None and not record.punched and store.has_blobs(record):
                    saved += _punch(store, sha256, record)
    except StoreError as error:
        log.info("wheels stay as they are: %s", error)
    return saved


def fill(store: Store, sha256: str) -> None:
    """Put back what `squeeze` took out of a download, if it did. What cannot be filled fails its check later.

    Raises:
        StoreError: the disk is full or not writable.

    """
    if not holes(store, store.download(sha256)):
        return
    with store.exclusive(f"download {sha256}"):
        record = store.sparse(sha256)
        if record is None or not record.punched:
            return
        place, digest = store.download(sha256), hashlib.sha256()
        with store.work() as folder, explained(place):
            with (folder / sha256).open("xb") as out:
                for chunk in content(store, sha256, record):
                    digest.update(chunk)
                    out.write(chunk)
            if digest.hexdigest() != sha256:
                log.warning("%s cannot be filled from the layers", place)
                store.drop_sparse(sha256)
                return
            (folder / sha256).replace(place)
        store.put_sparse(sha256, replace(record, punched=False))


def holes(store: Store, path: Path) -> SparseDownload | None:
    """Return what a file of the store lacks; None if it is whole, or no download."""
    is_download = path.parent == store.root / "downloads" / "sha256" and _HEX.fullmatch(path.name)
    record = store.sparse(path.name) if is_download else None
    return record if record and record.punched else None


def content(store: Store, sha256: str, record: SparseDownload) -> Iterator[bytes]:
    """Read all bytes of a download, with those that are in blobs only; fewer where a blob is too short."""
    with ExitStack() as files:

        def opened(path: Path) -> int:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            files.callback(os.close, descriptor)
            return descriptor

        own = opened(store.download(sha256))
        blobs = {name: opened(store.blob(name)) for name in {extent.blob for extent in record.extents}}
        position = 0
        for extent in record.extents:
            yield from _read(own, position, extent.start - position)
            yield from _read(blobs[extent.blob], extent.offset, extent.size)
            position = extent.start + extent.size
        yield from _read(own, position, record.size - position)


def _punch(store: Store, sha256: str, record: SparseDownload) -> int:
    """Write the download again without the extents, which are holes then."""
    place = store.download(sha256)
    with explained(place), store.draft() as folder:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with (folder / sha256).open("xb") as out:
                out.truncate(record.size)
                position = 0
                for end, following in (
                    *((e.start, e.start + e.size) for e in record.extents),
                    (record.size, 0),
                ):
                    out.seek(position)
                    for chunk in _read(descriptor, position, end - position):
                        out.write(chunk)
                    position = following
        finally:
            os.close(descriptor)
        # The record first: a whole file with this record is read right, too.
        store.put_sparse(sha256, replace(record, punched=True), is_alone=True)
        (folder / sha256).replace(place)
    return sum(extent.size for extent in record.extents)


def _read(descriptor: int, start: int, size: int) -> Iterator[bytes]:
    end = start + size
    while start < end and (chunk := os.pread(descriptor, min(_CHUNK, end - start), start)):
        yield chunk
        start += len(chunk)
