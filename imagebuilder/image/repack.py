"""Pack the layers of an image with zstd instead of gzip (RFC 8878): fewer bytes, and faster to unpack.

Only the packing changes. The tars stay, so the diffIDs, the config and with it the image's ID stay, and so
does every proof about them. The manifest is another one, because it names the packed layers.

A packed layer is a function of its tar, the parameters and the version of libzstd. Threads do not count: with
at least one worker, libzstd cuts a stream into jobs by its parameters alone (`ZSTD_c_nbWorkers` in zstd.h).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from imagebuilder.core import process, tarstream
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.errors import EnvironmentFault, StoreError
from imagebuilder.image import oci
from imagebuilder.store import ImageRecord, IndexRecord, LayerRecord, Store

MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
LIBZSTD = "1.5.7"
"""Another version may pack differently, and then the same lock would give another digest."""
PARAMETERS = {"compression_level": 3, "window_log": 23, "hash_log": 19, "chain_log": 18, "min_match": 6}
"""Level 3 with a window of 2^23 bytes, the largest that every decoder should take (RFC 8878, 3.1.1.1.2), and
larger tables. All layers of cuda12-torch, seconds of one core and bytes by gzip's: level 3 takes 40 s (0.84),
this 50 s (0.77). A search of levels above 4 depends on the processor."""

_CHUNK = 1 << 20
# Layers at a time, and workers of each. Four workers pack as fast as one core reads the gzip layer. Each
# takes 64 MB: a job is four windows.
_LAYERS = 4
_MOST_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Images whose layers were packed again, with another compression.

    Attributes:
        images: by the manifest of the image that each was made from.
        whole: the only image, or the index that joins them.

    """

    images: dict[str, ImageRecord]
    whole: ImageRecord | IndexRecord


def key(diff_id: str) -> str:
    """Return the key of a packed layer in the store: all that determines its bytes."""
    return hashlib.sha256(f"zstd 2\n{diff_id}\n{PARAMETERS}\nlibzstd {LIBZSTD}\n".encode()).hexdigest()


def wanting(image: ImageRecord, store: Store) -> tuple[LayerRecord, ...]:
    """Return the layers of an image that have to be packed, because the store does not have the result."""
    layers = {layer.record.digest: layer.record for layer in image.layers}
    return tuple(
        record
        for record in layers.values()
        if record.media_type != MEDIA_TYPE and store.layer(key(record.diff_id)) is None
    )


def repack(whole: ImageRecord | IndexRecord, store: Store, advance: Advance = no_advance) -> Packed:
    """Pack the layers of an image, or of those that an index joins; those that the store has cost nothing.

    Args:
        whole: the image or index, with its layers in the store.
        store: gets the layers and the documents, but no record of the image.
        advance: called with the bytes of gzip layers that are done.

    Raises:
        EnvironmentFault: Python was built with another libzstd.
        StoreError: a layer is gone or damaged, or the disk is full.

    """
    _require_library()
    with store.in_use():
        wanted = {record.diff_id: record for image in whole.images for record in wanting(image, store)}
        _pack_all(tuple(wanted.values()), store, advance)
        images = {image.manifest: packed(image, store) for image in whole.images}
        if isinstance(whole, ImageRecord):
            return Packed(images=images, whole=images[whole.manifest])
        index = oci.index_of(tuple(images.values()), whole.tags, whole.lock, store)
        return Packed(images=images, whole=index)


def _require_library() -> None:
    found = tarstream.zstd().zstd_version
    if found != LIBZSTD:
        raise EnvironmentFault(
            f"this Python has libzstd {found}, and layers are packed with {LIBZSTD}: another version may "
            "give other digests",
            where="--compression zstd",
            hint="use a Python up to 3.13 (its wheel of backports.zstd has it), one with that libzstd, or "
            "--compression gzip",
        )


def _pack_all(records: Sequence[LayerRecord], store: Store, advance: Advance) -> None:
    # The largest first, so that all cores stay busy until shortly before the end.
    ordered = sorted(records, key=lambda record: (-record.unpacked, record.digest))
    workers = min(_MOST_WORKERS, process.cores())
    with ThreadPoolExecutor(min(_LAYERS, workers + 1), thread_name_prefix="zstd") as pool:
        jobs = [pool.submit(_pack, record, store, workers, advance) for record in ordered]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _pack(record: LayerRecord, store: Store, workers: int, advance: Advance) -> None:
    """Pack one layer, and check its tar on the way."""
    name = key(record.diff_id)
    with store.exclusive(f"zstd {name}"):
        if store.layer(name) is None:
            store.put_layer(name, compress(record, store, workers))
    advance(record.size)


def compress(record: LayerRecord, store: Store, workers: int = 1) -> LayerRecord:
    """Pack the tar of a layer of the store, and return the record of the new blob.

    Args:
        record: the layer.
        store: has it, and gets the new blob.
        workers: threads that pack, at least one; their number does not change the bytes.

    Raises:
        StoreError: the layer is gone or damaged, or the disk is full.

    """
    library: Any = tarstream.zstd()
    options = {**PARAMETERS, "nb_workers": max(1, workers)}
    packer = library.ZstdCompressor(
        options={library.CompressionParameter[name]: value for name, value in options.items()}
    )
    packer.set_pledged_input_size(record.unpacked)
    place, diff_id, size = store.blob(record.digest), hashlib.sha256(), 0
    try:
        with store.writer() as writer, tarstream.open_layer(place) as tar:
            while (data := tar.read(_CHUNK)) and size <= record.unpacked:
                diff_id.update(data)
                size += len(data)
                writer.write(packer.compress(data))
            writer.write(packer.flush())
            if f"sha256:{diff_id.hexdigest()}" != record.diff_id:
                raise ValueError("it unpacks to another tar")
            digest, packed = writer.commit()
    except tarstream.errors() as error:
        raise StoreError(
            f"the layer is damaged: {error}", where=str(place), hint="run: imagebuilder cache verify --fix"
        ) from error
    return replace(record, digest=digest, size=packed, media_type=MEDIA_TYPE, toc="")


def packed(image: ImageRecord, store: Store) -> ImageRecord:
    """Return an image with its layers as the store has them packed, and write its manifest.

    Raises:
        StoreError: a layer is not packed yet.

    """
    layers = []
    for layer in image.layers:
        record = layer.record
        made = record if record.media_type == MEDIA_TYPE else store.layer(key(record.diff_id))
        if made is None:
            raise StoreError(
                "its layers are not packed with zstd yet",
                where=image.name,
                hint="push it first: imagebuilder push --compression zstd",
            )
        layers.append(replace(layer, record=made))
    config = store.blob(image.config).read_bytes()
    manifest, size = store.put_bytes(oci.manifest_document(config, [layer.record for layer in layers]))
    total = len(config) + size + sum(layer.record.size for layer in layers)
    return replace(image, manifest=manifest, size=total, layers=tuple(layers))
