"""Small images in a store, for tests of what ships them."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
import zlib
from collections.abc import Mapping, Sequence

from imagebuilder.store import ImageLayer, ImageRecord, LayerRecord, Store

_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


def put_image(
    store: Store, layers: Sequence[Mapping[str, bytes]], *, name: str = "sample", label: str = "one"
) -> ImageRecord:
    """Make an image of layers, each a mapping of file names to contents, without Python's own gzip header."""
    records = [put_layer(store, files) for files in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Labels": {"org.imagebuilder.test": label, "org.imagebuilder.recipe": name},
            "Cmd": ["/bin/true"],
        },
        "rootfs": {"type": "layers", "diff_ids": [record.diff_id for record in records]},
        "history": [{"created_by": "test"} for _ in records],
    }
    config_digest, config_size = store.put_bytes(json.dumps(config).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config_digest,
            "size": config_size,
        },
        "layers": [
            {"mediaType": record.media_type, "digest": record.digest, "size": record.size}
            for record in records
        ],
    }
    manifest_digest, manifest_size = store.put_bytes(json.dumps(manifest).encode())
    image = ImageRecord(
        name=name,
        manifest=manifest_digest,
        config=config_digest,
        size=manifest_size + config_size + sum(record.size for record in records),
        tag="tag1",
        tags=("tag1", "0" * 12),
        lock="0" * 64,
        layers=tuple(ImageLayer(record=record, title="files", component="test") for record in records),
    )
    store.put_image(image)
    return image


def noise(seed: int, size: int) -> bytes:
    """Bytes that do not compress, so that a layer is as large as it looks."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - no secret


def put_layer(store: Store, files: Mapping[str, bytes]) -> LayerRecord:
    """Make one layer of files: `->` begins the content of a symbolic link, and programs may be executed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            if content.startswith(b"->"):
                info.type, info.linkname = tarfile.SYMTYPE, content[2:].decode()
            else:
                info.size = len(content)
                info.mode = 0o755 if content.startswith(b"\x7fELF") else info.mode
            tar.addfile(info, io.BytesIO(content))
    plain = buffer.getvalue()
    half = len(plain) // 2
    # Two members, as the layers of real images have many: every engine must take them as one stream.
    digest, size = store.put_bytes(_gzip(plain[:half]) + _gzip(plain[half:]))
    return LayerRecord(
        digest=digest,
        diff_id=f"sha256:{hashlib.sha256(plain).hexdigest()}",
        size=size,
        unpacked=len(plain),
        media_type=_LAYER_TYPE,
    )


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()
