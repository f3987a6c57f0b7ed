"""The store: blobs, downloads and records under one folder, shared by all builds of a user.

    blobs/sha256/<hex>       layers, image configs and manifests
    downloads/sha256/<hex>   wheels and Debian packages, as fetched
    sparse/<hex>.json        which bytes of a wheel are in blobs too, and need not be in the download
    away/<hex>.json          a blob that need not be here, and which registry has it (`AwayBlob`)
    taken/<key>.json         a layer that came from a cache, as the last lock with this key describes it
    layers/<key>.json        the blob of the layer with this key, or that the layer is empty (`LayerRecord`)
    images/<name>.json       the last image of that name (`ImageRecord`); for another platform than
                             linux/amd64 `<name>--linux-arm64.json`
    indexes/<name>.json      the index of the images of that name for several platforms (`IndexRecord`)
    reports/<hex>.json       the smoke report of a manifest
    licences/<hex>.json      what the copyright files in a layer say (`attest.licences`)
    scans/<hex>.json         results of the search for secrets in a layer (`leaks.image`)
    pushed/<hex>.json        which repository of a registry has a blob (`registry.sources`)
    sources/<hex>.json       the recipe and the lock of a manifest
    locks/  work/            locks and temporary files of running builds

Every file is written elsewhere and renamed, so readers see a whole file or none, even if a writer is killed.
The store is a cache: a file that a power cut damaged (a blob shorter than in its record, a broken record)
counts as missing and is made again. Only image and index records are replaced in place, so only they get an
fsync.
"""

from __future__ import annotations

from imagebuilder.store.files import DamagedDownloadError, check_bytes, explained, link_or_copy, remove_tree
from imagebuilder.store.folder import BlobWriter, Store
from imagebuilder.store.records import (
    EMPTY_LAYER,
    Extent,
    ImageLayer,
    ImageRecord,
    IndexRecord,
    LayerRecord,
    SparseDownload,
)

__all__ = [
    "EMPTY_LAYER",
    "BlobWriter",
    "DamagedDownloadError",
    "Extent",
    "ImageLayer",
    "ImageRecord",
    "IndexRecord",
    "LayerRecord",
    "SparseDownload",
    "Store",
    "check_bytes",
    "explained",
    "link_or_copy",
    "remove_tree",
]
