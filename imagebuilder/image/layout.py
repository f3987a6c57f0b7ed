"""Writes images as OCI layouts: as a folder, as an archive, or as a stream for `docker load`.

Format: image-spec 1.1, image-layout.md. Archives also have the `manifest.json` of `docker save`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder.core import documents
from imagebuilder.core import labels as label_names
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.errors import InputError, StoreError
from imagebuilder.image.oci import INDEX_TYPE, IndexEntry
from imagebuilder.layers import archive
from imagebuilder.store import ImageRecord, IndexRecord, Store, explained, link_or_copy, remove_tree

_MARK = documents.dumps({"imageLayoutVersion": "1.0.0"})
_PIECE = 1 << 20
_FILES = frozenset({".tar", ".sqsh"})  # all other names are folders


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The content of a layout, before it is written.

    Attributes:
        blobs: the file or the bytes of each blob, by digest.
        manifests: the entries of `index.json`.
        docker: the entries of `manifest.json`, which all versions of `docker load` and `podman load` read. A
            folder has no such file.

    """

    blobs: Mapping[str, Path | bytes]
    manifests: Sequence[Mapping[str, Any]]
    docker: Sequence[Mapping[str, Any]] = ()

    @property
    def index(self) -> bytes:
        """The bytes of `index.json`."""
        return documents.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": self.manifests})


def of_image(image: ImageRecord | IndexRecord, store: Store, reference: str = "") -> Layout:
    """Return the layout of an image in the store.

    Args:
        image: one image, or an index of several.
        store: has its blobs.
        reference: the name for an engine, `name:tag`; by default the image's own.

    Raises:
        StoreError: a blob is missing.

    """
    for digest in blobs(image):
        if not store.has_blob(digest):
            raise StoreError("is missing from the store", where=digest, hint="build the image again")
    reference = reference or f"{image.name}:{image.tag}"
    # `manifest.json` has no platforms, so it names only the first of several images.
    first = image.images[0]
    legacy = {
        "Config": _place(first.config),
        "RepoTags": [reference],
        "Layers": [_place(layer.record.digest) for layer in first.layers],
    }
    return Layout(
        blobs={digest: store.blob(digest) for digest in blobs(image)},
        manifests=[_entry(image, store, reference)],
        docker=[legacy],
    )


def blobs(image: ImageRecord | IndexRecord) -> tuple[str, ...]:
    """Return the digests of all blobs of an image, each once: layers, configs, and the manifest last."""
    parts = (
        digest
        for one in image.images
        for digest in (*(layer.record.digest for layer in one.layers), one.config, one.manifest)
    )
    return tuple(dict.fromkeys((*parts, image.manifest)))


def write_folder(layout: Layout, folder: Path) -> None:
    """Write a layout to a new folder; blobs are hard links if possible."""
    place = folder / "blobs" / "sha256"
    place.mkdir(parents=True)
    for digest, content in layout.blobs.items():
        target = place / digest.removeprefix("sha256:")
        if isinstance(content, Path):
            link_or_copy(content, target)
        else:
            target.write_bytes(content)
    (folder / "index.json").write_bytes(layout.index)
    (folder / "oci-layout").write_bytes(_MARK)


def stream(layout: Layout, advance: Advance = no_advance) -> Iterator[bytes]:
    """Yield a layout as a tar archive, in pieces; calls `advance` with the bytes of blobs."""
    yield archive.directory("blobs", 0o755) + archive.directory("blobs/sha256", 0o755)
    for digest in sorted(layout.blobs):
        yield from _member(_place(digest), layout.blobs[digest], advance)
    yield from _member("index.json", layout.index)
    yield from _member("manifest.json", documents.dumps(layout.docker))
    yield from _member("oci-layout", _MARK)
    yield archive.TAR_END


def export(image: ImageRecord | IndexRecord, store: Store, destination: Path) -> None:
    """Write an image as an OCI layout: a folder, or an archive if the name ends in `.tar`.

    It appears in one step. A folder shares its blobs with the store as hard links if possible.

    Raises:
        InputError: the destination exists and is not an image.
        StoreError: a blob is missing, or the disk is full.

    """
    layout = of_image(image, store)
    with replacing(destination) as draft:
        if destination.suffix == ".tar":
            with draft.open("xb") as file:
                file.writelines(stream(layout))
        else:
            write_folder(layout, draft)


@contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """Yield a path beside the destination; if the block succeeds, it is renamed to the destination.

    Args:
        destination: a file if the name ends in `.tar` or `.sqsh`, else a folder.

    Raises:
        InputError: the destination exists and is not an image.
        StoreError: the disk is full or not writable.

    """
    archived = destination.suffix in _FILES
    if archived and destination.is_dir():
        hint = f"name a file that ends in {destination.suffix}"
        raise InputError("is a folder", where=str(destination), hint=hint)
    if not archived:
        _require_layout_or_nothing(destination)
    with _beside(destination) as folder:
        draft = folder / destination.name
        yield draft
        if archived:
            draft.rename(destination)
        else:
            # The folder gets the mode of any new folder here, no matter what created it.
            (folder / "new").mkdir()
            draft.chmod((folder / "new").stat().st_mode & 0o777)
            _replace_folder(draft, destination)


def _entry(image: ImageRecord | IndexRecord, store: Store, reference: str) -> dict[str, Any]:
    """Return the layout's only entry: the image, or the index of several."""
    size = store.blob(image.manifest).stat().st_size
    entry: dict[str, Any] = {"mediaType": INDEX_TYPE, "digest": image.manifest, "size": size}
    if isinstance(image, ImageRecord):
        entry = IndexEntry(platform=image.platform, digest=image.manifest, size=size, labels={}).descriptor
    # Podman's local images are under `localhost/`; other names without a host mean Docker Hub.
    full = reference if reference.startswith("localhost/") else f"docker.io/library/{reference}"
    annotations = {
        label_names.REF_NAME: reference.rpartition(":")[2],
        # containerd, and so `docker load` with its image store, reads the full name here.
        "io.containerd.image.name": full,
    }
    return {**entry, "annotations": annotations}


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _member(path: str, content: Path | bytes, advance: Advance = no_advance) -> Iterator[bytes]:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    yield archive.regular(path, 0o644, size)
    if isinstance(content, bytes):
        yield content
        advance(size)
    else:
        with content.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
                advance(len(piece))
    yield archive.padding(size)


def _require_layout_or_nothing(destination: Path) -> None:
    """Refuse to replace anything but an image, so that a mistyped path does not delete a folder."""
    if not os.path.lexists(destination):
        return
    if not destination.is_dir():
        raise InputError(
            "exists and is not a folder",
            where=str(destination),
            hint="name another path, or one that ends in .tar",
        )
    names = {path.name for path in destination.iterdir()}
    if names and not ("oci-layout" in names and names <= {"oci-layout", "index.json", "blobs", "ingest"}):
        raise InputError(
            "exists and is not an OCI image", where=str(destination), hint="name a folder that does not exist"
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


@contextmanager
def _beside(destination: Path) -> Iterator[Path]:
    """Yield a temporary folder beside the destination, so that a rename to it is one step."""
    with explained(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    try:
        with explained(destination):
            yield path
    finally:
        remove_tree(path)
