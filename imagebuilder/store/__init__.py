"""The store: blobs, downloads and records under one folder, shared by all builds of a user.

    blobs/sha256/<hex>       layers, image configs and manifests
    downloads/sha256/<hex>   wheels and Debian packages, as fetched
    layers/<key>.json        the blob that a layer's key gave, or that the layer is empty (`LayerRecord`)
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

from imagebuilder.store.files import DamagedDownloadError, check_bytes, explained, link_or_copy, remove_tree
from imagebuilder.store.folder import BlobWriter, Store
from imagebuilder.store.records import EMPTY_LAYER, ImageLayer, ImageRecord, IndexRecord, LayerRecord

__all__ = [
    "EMPTY_LAYER",
    "BlobWriter",
    "DamagedDownloadError",
    "ImageLayer",
    "ImageRecord",
    "IndexRecord",
    "LayerRecord",
    "Store",
    "check_bytes",
    "explained",
    "link_or_copy",
    "remove_tree",
]
