"""The image as OCI has it: config and manifest blobs, and the image layout that other tools read.

Formats: image-spec 1.1 (config.md, manifest.md, image-layout.md). Both documents hold nothing but what the
plan says, so the manifest's digest is a function of the lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from imagebuilder.errors import InputError, StoreError
from imagebuilder.layers import archive
from imagebuilder.plan import (
    EPOCH,
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    Layer,
    OsLayer,
    OsPart,
    Plan,
    WheelLayer,
)
from imagebuilder.store import (
    ImageLayer,
    ImageRecord,
    IndexRecord,
    LayerRecord,
    Store,
    explained,
    link_or_copy,
    remove_tree,
)

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"

_LAYOUT = {"imageLayoutVersion": "1.0.0"}
_COPY = 1 << 22


def write_image(plan: Plan, layers: Sequence[LayerRecord], store: Store) -> ImageRecord:
    """Make the config and the manifest of an image, and remember it under its name.

    Args:
        plan: what the image is.
        layers: its layers as made, in the plan's order.
        store: where both go.

    Raises:
        StoreError: the store is full or not writable.

    """
    config_digest, config_size = store.put_bytes(
        _json(image_config(plan, [layer.diff_id for layer in layers]))
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": config_size},
        "layers": [
            {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size} for layer in layers
        ],
    }
    manifest_digest, manifest_size = store.put_bytes(_json(manifest))
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
            ImageLayer(record=record, title=layer.title, component=_component(layer))
            for layer, record in zip(plan.layers, layers, strict=True)
        ),
    )
    store.put_image(image)
    return image


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One image of an index: platform, the manifest's digest and size in bytes, and the image's labels."""

    platform: str
    digest: str
    size: int
    labels: Mapping[str, str]

    @property
    def descriptor(self) -> dict[str, Any]:
        """How an index names it (image-spec 1.1, image-index.md)."""
        system, _, architecture = self.platform.partition("/")
        return {
            "mediaType": MANIFEST_TYPE,
            "digest": self.digest,
            "size": self.size,
            "platform": {"architecture": architecture, "os": system},
        }


def index_document(entries: Sequence[Entry], lock: str) -> bytes:
    """Write an image index: a function of its images and the lock file's checksum.

    Its annotations are the labels on which all images agree, so that a registry shows them for the whole.
    """
    ordered = sorted(entries, key=lambda entry: entry.platform)
    common = set(ordered[0].labels.items()).intersection(*(entry.labels.items() for entry in ordered))
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [entry.descriptor for entry in ordered],
        "annotations": {**dict(common), **({"org.imagebuilder.lock": lock} if lock else {})},
    }
    return _json(index)


def join(images: Sequence[ImageRecord], tags: Sequence[str], lock: str, store: Store) -> IndexRecord:
    """Make the index of one recipe's images for several platforms, and remember it under its name.

    Args:
        images: at least one, each for another platform.
        tags: to push the index under, its own first.
        lock: checksum of the lock file.
        store: where it goes.

    Raises:
        StoreError: a config cannot be read, or the store is full or not writable.

    """
    ordered = tuple(sorted(images, key=lambda image: image.platform))
    labels = [
        json.loads(store.blob(image.config).read_bytes())["config"].get("Labels", {}) for image in ordered
    ]
    entries = [
        Entry(
            platform=image.platform,
            digest=image.manifest,
            size=store.blob(image.manifest).stat().st_size,
            labels=found,
        )
        for image, found in zip(ordered, labels, strict=True)
    ]
    digest, _ = store.put_bytes(index_document(entries, lock))
    record = IndexRecord(
        name=ordered[0].name, manifest=digest, tag=tags[0], tags=tuple(tags), lock=lock, images=ordered
    )
    store.put_index(record)
    return record


def is_image_of(plan: Plan, image: ImageRecord, store: Store) -> bool:
    """Tell whether an image has the config and the layers that a plan gives now.

    A layer whose record is gone from the store counts as the plan's: its diffID stands in the config.
    """
    records = [layer.record for layer in image.layers]
    if len(records) != len(plan.layers):
        return False
    config = _json(image_config(plan, [record.diff_id for record in records]))
    if image.config != f"sha256:{hashlib.sha256(config).hexdigest()}":
        return False
    made = [store.layer(layer.key) for layer in plan.layers]
    return all(new is None or new.digest == old.digest for new, old in zip(made, records, strict=True))


def export(image: ImageRecord | IndexRecord, store: Store, destination: Path) -> None:
    """Write an image as an OCI layout: a folder, or an archive where the name ends in `.tar`.

    It appears in one step. A folder shares its blobs with the store as hard links where that is possible. An
    archive also has the list that `docker load` and `podman load` of any age look for.

    Raises:
        InputError: something else is in the place.
        StoreError: a blob is missing, or the disk is full.

    """
    for digest in blobs(image):
        if not store.has_blob(digest):
            raise StoreError("is missing from the store", where=digest, hint="build the image again")
    if destination.suffix == ".tar":
        _export_archive(image, store, destination)
    else:
        _export_folder(image, store, destination)


@contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """Lend a place beside the destination; what is written there takes its place when all went well.

    Args:
        destination: a file where the name ends in `.tar`, else a folder.

    Raises:
        InputError: something that is no image is in the place.
        StoreError: the disk is full or not writable.

    """
    archived = destination.suffix == ".tar"
    if archived and destination.is_dir():
        raise InputError("is a folder", where=str(destination), hint="name a file that ends in .tar")
    if not archived:
        _require_layout_or_nothing(destination)
    with _beside(destination) as folder:
        draft = folder / destination.name
        yield draft
        if archived:
            draft.rename(destination)
        else:
            draft.chmod(0o755)
            _replace_folder(draft, destination)


def blobs(image: ImageRecord | IndexRecord) -> tuple[str, ...]:
    """Name the digests of all blobs of an image, each once: layers, configs, and the manifest last."""
    parts = (
        digest
        for one in image.images
        for digest in (*(layer.record.digest for layer in one.layers), one.config, one.manifest)
    )
    return tuple(dict.fromkeys((*parts, image.manifest)))


def image_config(plan: Plan, diff_ids: Sequence[str]) -> dict[str, Any]:
    """Make the image config of a plan; `diff_ids` are the digests of its layers' tars, the lowest first."""
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
        "created": EPOCH,
        "architecture": plan.architecture,
        "os": "linux",
        "config": {key: value for key, value in run.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [
            {"created": EPOCH, "created_by": f"imagebuilder: {layer.title}"} for layer in plan.layers
        ],
    }


def _component(layer: Layer) -> str:
    match layer:
        case ImportedLayer():
            return "base"
        case OsLayer():
            return layer.distribution
        case OsPart():
            return layer.system.distribution
        case BuiltLayer() | WheelLayer() | BytecodeLayer():
            return layer.component
        case FilesLayer():
            return layer.name
        case KeysLayer():
            return "ssh"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _index(image: ImageRecord | IndexRecord, store: Store) -> bytes:
    """Write the layout's own index: one entry, which is the image or the index of several."""
    size = store.blob(image.manifest).stat().st_size
    entry: dict[str, Any] = {"mediaType": INDEX_TYPE, "digest": image.manifest, "size": size}
    if isinstance(image, ImageRecord):
        entry = Entry(platform=image.platform, digest=image.manifest, size=size, labels={}).descriptor
    annotations = {
        "org.opencontainers.image.ref.name": image.tag,
        # Where containerd, and so `docker load` on its store, looks for the full name.
        "io.containerd.image.name": f"docker.io/library/{image.name}:{image.tag}",
    }
    manifests = [{**entry, "annotations": annotations}]
    return _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def _export_folder(image: ImageRecord | IndexRecord, store: Store, destination: Path) -> None:
    with replacing(destination) as draft:
        folder = draft / "blobs" / "sha256"
        folder.mkdir(parents=True)
        for digest in blobs(image):
            link_or_copy(store.blob(digest), folder / digest.removeprefix("sha256:"))
        (draft / "index.json").write_bytes(_index(image, store))
        (draft / "oci-layout").write_bytes(_json(_LAYOUT))


def _require_layout_or_nothing(destination: Path) -> None:
    """Refuse to replace what is not an image: a mistyped path must not cost somebody's folder."""
    if not os.path.lexists(destination):
        return
    if not destination.is_dir():
        raise InputError(
            "is there and is not a folder", where=str(destination), hint="name another one, or one in .tar"
        )
    names = {path.name for path in destination.iterdir()}
    if names and not ("oci-layout" in names and names <= {"oci-layout", "index.json", "blobs", "ingest"}):
        raise InputError(
            "is there and is not an OCI image", where=str(destination), hint="name a folder that is not there"
        )


def _replace_folder(draft: Path, destination: Path) -> None:
    if not destination.exists():
        draft.rename(destination)
        return
    with _beside(destination) as old:
        destination.rename(old / "old")
        try:
            draft.rename(destination)
        except BaseException:
            (old / "old").rename(destination)
            raise


def _export_archive(image: ImageRecord | IndexRecord, store: Store, destination: Path) -> None:
    with replacing(destination) as draft, draft.open("xb") as file:
        _write_archive(image, store, file)


def _write_archive(image: ImageRecord | IndexRecord, store: Store, file: BinaryIO) -> None:
    def small(name: str, data: bytes) -> bytes:
        return archive.regular(name, 0o644, len(data)) + data + archive.padding(len(data))

    def place(digest: str) -> str:
        return f"blobs/sha256/{digest.removeprefix('sha256:')}"

    # The list of the older format of `docker save`, which newer ones write beside the OCI layout too. It
    # knows nothing of platforms: of several images the first has the name.
    first = image.images[0]
    legacy = {
        "Config": place(first.config),
        "RepoTags": [f"{image.name}:{image.tag}"],
        "Layers": [place(layer.record.digest) for layer in first.layers],
    }
    file.write(archive.directory("blobs", 0o755) + archive.directory("blobs/sha256", 0o755))
    for digest in sorted(blobs(image)):
        path = store.blob(digest)
        size = path.stat().st_size
        file.write(archive.regular(place(digest), 0o644, size))
        with path.open("rb") as blob:
            shutil.copyfileobj(blob, file, _COPY)
        file.write(archive.padding(size))
    file.write(small("index.json", _index(image, store)))
    file.write(small("manifest.json", _json([legacy])))
    file.write(small("oci-layout", _json(_LAYOUT)))
    file.write(archive.TAR_END)


@contextmanager
def _beside(destination: Path) -> Iterator[Path]:
    """Lend a folder on the destination's file system, from where a rename is one step."""
    with explained(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    try:
        with explained(destination):
            yield path
    finally:
        remove_tree(path)
