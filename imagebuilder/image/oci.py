"""The OCI documents of an image: config, manifest, and the index over the images of several platforms.

Formats: image-spec 1.1 (config.md, manifest.md, image-index.md). They contain only what the plan says, so the
    manifest's digest is a function of the lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imagebuilder.core import documents
from imagebuilder.core import labels as label_names
from imagebuilder.lock.model import BaseLayer
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    Layer,
    OsLayer,
    OsPart,
    PackageLayer,
    Plan,
    ProjectLayer,
    WheelLayer,
)
from imagebuilder.store import (
    EMPTY_LAYER,
    ImageLayer,
    ImageRecord,
    IndexRecord,
    LayerRecord,
    Store,
)

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CREATED_BY = "imagebuilder: "
"""How the history of an image's config begins each line; the title of a layer follows."""


def write_image(plan: Plan, layers: Sequence[LayerRecord], store: Store) -> ImageRecord:
    """Write the config and the manifest of an image, and its record in the store.

    Args:
        plan: the image.
        layers: one record for each layer of the plan; the image leaves out those that are empty.
        store: both are written to it.

    Raises:
        StoreError: the store is full or not writable.

    """
    made = [(layer, record) for layer, record in zip(plan.layers, layers, strict=True) if not record.is_empty]
    plan = replace(plan, layers=tuple(layer for layer, _ in made))
    layers = [record for _, record in made]
    config = documents.dumps(image_config(plan, [layer.diff_id for layer in layers]))
    config_digest, config_size = store.put_bytes(config)
    manifest_digest, manifest_size = store.put_bytes(manifest_document(config, layers))
    image = ImageRecord(
        name=plan.name,
        manifest=manifest_digest,
        config=config_digest,
        size=config_size + manifest_size + sum(layer.size for layer in layers),
        tag=plan.tag,
        tags=plan.tags,
        lock=plan.lock_checksum,
        platform=plan.platform,
        siblings=plan.siblings,
        layers=tuple(
            ImageLayer(record=record, title=layer.title, component=component(layer)) for layer, record in made
        ),
    )
    store.put_image(image)
    return image


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """One image of an index: platform, the manifest's digest and size in bytes, and the image's labels."""

    platform: str
    digest: str
    size: int
    labels: Mapping[str, str]

    @property
    def descriptor(self) -> dict[str, Any]:
        """The image's entry in an index (image-spec 1.1, image-index.md)."""
        system, _, architecture = self.platform.partition("/")
        return {
            "mediaType": MANIFEST_TYPE,
            "digest": self.digest,
            "size": self.size,
            "platform": {"architecture": architecture, "os": system},
        }


def index_document(entries: Sequence[IndexEntry], lock: str) -> bytes:
    """Return an image index; it depends only on its images and the lock file's checksum.

    Its annotations are the labels that all images share, so that a registry can show them for the index, and
    the newest time of the images.
    """
    ordered = sorted(entries, key=lambda entry: entry.platform)
    common = set(ordered[0].labels.items()).intersection(*(entry.labels.items() for entry in ordered))
    created = max(entry.labels.get(label_names.CREATED, "") for entry in ordered)
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [entry.descriptor for entry in ordered],
        "annotations": {
            **dict(common),
            **({label_names.CREATED: created} if created else {}),
            **({label_names.LOCK: lock} if lock else {}),
        },
    }
    return documents.dumps(index)


def join(images: Sequence[ImageRecord], tags: Sequence[str], lock: str, store: Store) -> IndexRecord:
    """Write the index of one recipe's images for several platforms, and its record in the store.

    Args and errors: as `index_of` has them.
    """
    record = index_of(images, tags, lock, store)
    store.put_index(record)
    return record


def index_of(images: Sequence[ImageRecord], tags: Sequence[str], lock: str, store: Store) -> IndexRecord:
    """Write the index of one recipe's images for several platforms, without a record in the store.

    Args:
        images: at least one, each for another platform.
        tags: the tags to push, the index's own tag first.
        lock: checksum of the lock file.
        store: the index is written to it.

    Raises:
        StoreError: a config cannot be read, or the store is full or not writable.

    """
    ordered = tuple(sorted(images, key=lambda image: image.platform))
    labels = [
        json.loads(store.blob(image.config).read_bytes())["config"].get("Labels", {}) for image in ordered
    ]
    entries = [
        IndexEntry(
            platform=image.platform,
            digest=image.manifest,
            size=store.blob(image.manifest).stat().st_size,
            labels=own,
        )
        for image, own in zip(ordered, labels, strict=True)
    ]
    digest, _ = store.put_bytes(index_document(entries, lock))
    return IndexRecord(
        name=ordered[0].name, manifest=digest, tag=tags[0], tags=tuple(tags), lock=lock, images=ordered
    )


def is_image_of(plan: Plan, image: ImageRecord, store: Store) -> bool:
    """Return whether an image has the config and the layers that a plan gives now.

    A layer whose record is gone from the store counts as the plan's: its diffID is in the config.
    """
    own = plan.of_image({layer.title for layer in image.layers})
    if len(image.layers) != len(own.layers):
        return False
    config = documents.dumps(image_config(own, [layer.record.diff_id for layer in image.layers]))
    if image.config != documents.digest_of(config):
        return False
    records = dict(zip(own.layers, (layer.record for layer in image.layers), strict=True))
    made = {layer: store.layer(layer.key) for layer in plan.layers}
    return all(new is None or new == records.get(layer, EMPTY_LAYER) for layer, new in made.items())


def manifest_document(config: bytes, layers: Sequence[LayerRecord | BaseLayer]) -> bytes:
    """Return the manifest of an image with this config and these layers, the lowest first."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, config),
        "layers": [_layer(layer) for layer in layers],
    }
    return documents.dumps(manifest)


def _layer(layer: LayerRecord | BaseLayer) -> dict[str, Any]:
    described: dict[str, Any] = {
        "mediaType": layer.media_type,
        "digest": layer.digest,
        "size": layer.size,
    }
    if isinstance(layer, LayerRecord) and layer.toc:
        described["annotations"] = {label_names.TOC: layer.toc}
    return described


def descriptor(media_type: str, document: bytes) -> dict[str, Any]:
    """Return the descriptor with which other documents refer to this one (image-spec 1.1, descriptor.md)."""
    return {"mediaType": media_type, "digest": documents.digest_of(document), "size": len(document)}


def image_config(plan: Plan, diff_ids: Sequence[str]) -> dict[str, Any]:
    """Return the image config of a plan; `diff_ids` are the digests of its layers' tars, the lowest first."""
    config = plan.config
    run = {
        "Env": [f"{name}={value}" for name, value in config.env],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "User": config.user,
        "WorkingDir": config.workdir,
        "ExposedPorts": {f"{port}/tcp": {} for port in config.ports},
        "Labels": dict(config.labels),
    }
    return {
        "created": config.created,
        "architecture": plan.architecture,
        "os": "linux",
        "config": {key: value for key, value in run.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [
            {"created": config.created, "created_by": CREATED_BY + layer.title} for layer in plan.layers
        ],
    }


def component(layer: Layer) -> str:
    """Return the pin that a layer belongs to, or which part of the image it is: `debian`, `project`."""
    match layer:
        case ImportedLayer():
            return "base"
        case OsLayer():
            return layer.distribution
        case OsPart():
            return layer.system.distribution
        case BuiltLayer() | WheelLayer() | BytecodeLayer() | PackageLayer():
            return layer.component
        case FilesLayer():
            return layer.name
        case KeysLayer() | ProjectLayer():
            return "ssh" if isinstance(layer, KeysLayer) else "project"
