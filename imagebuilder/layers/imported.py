"""Takes over layers of a base from the downloads unchanged, after checking their diffIDs."""

from __future__ import annotations

import hashlib

from imagebuilder.core import tarstream
from imagebuilder.core.progress import Advance
from imagebuilder.errors import BuildError
from imagebuilder.plan import ImportedLayer
from imagebuilder.store import LayerRecord, Store

_PIECE = 1 << 20


def import_layer(layer: ImportedLayer, store: Store, advance: Advance) -> LayerRecord:
    """Make a downloaded layer of the base a blob of the store.

    Args:
        layer: the layer; its blob is among the store's downloads.
        store: the blob is put there, as a hard link if possible.
        advance: called with the bytes done, at the end.

    Raises:
        BuildError: its tar does not have the diffID in the base's config.
        StoreError: the disk is full or not writable.

    """
    blob = layer.blob
    path = store.download(blob.sha256)
    unpacked, digest = 0, hashlib.sha256()
    try:
        with tarstream.open_layer(path) as stream:
            while data := stream.read(_PIECE):
                digest.update(data)
                unpacked += len(data)
    except tarstream.errors() as error:
        raise BuildError(
            f"is not a layer: {error}", where=layer.title, hint="run: imagebuilder cache verify --fix"
        ) from error
    if f"sha256:{digest.hexdigest()}" != blob.diff_id:
        raise BuildError(
            f"holds a tar with the digest sha256:{digest.hexdigest()}, not {blob.diff_id}",
            where=layer.title,
            hint="lock again: the base was damaged when it was pushed",
        )
    store.take_blob(path, blob.digest)
    advance(blob.size)
    return LayerRecord(
        digest=blob.digest,
        diff_id=blob.diff_id,
        size=blob.size,
        unpacked=unpacked,
        media_type=blob.media_type,
    )
