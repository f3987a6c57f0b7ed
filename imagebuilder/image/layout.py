"""The OCI image layout that other tools read: as a folder, as an archive, or as a stream for `docker load`.

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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a layout holds, before it is written.

    Attributes:
        blobs: the file or the bytes of each blob, by digest.
        manifests: the entries of `index.json`.
        docker: the entries of `manifest.json`, which `docker load` and `podman load` of any age look for. A
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
    """Lay out an image of the store.

    Args:
        image: one image, or an index of several.
        store: holds its blobs.
        reference: the name that an engine gives it, `name:tag`; the image's own without it.

    Raises:
        StoreError: a blob is missing.

    """
    for digest in blobs(image):
        if not store.has_blob(digest):
            raise StoreError("is missing from the store", where=digest, hint="build the image again")
    reference = reference or f"{image.name}:{image.tag}"
    # `manifest.json` knows nothing of platforms: of several images the first has the name.
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
    """Name the digests of all blobs of an image, each once: layers, configs, and the manifest last."""
    parts = (
        digest
        for one in image.images
        for digest in (*(layer.record.digest for layer in one.layers), one.config, one.manifest)
    )
    return tuple(dict.fromkeys((*parts, image.manifest)))


def write_folder(layout: Layout, folder: Path) -> None:
    """Write a layout as a folder, which is made here; blobs are hard links where that is possible."""
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
    """Write a layout as a tar archive, in pieces; `advance` is told the bytes of blobs as they go out."""
    yield archive.directory("blobs", 0o755) + archive.directory("blobs/sha256", 0o755)
    for digest in sorted(layout.blobs):
        yield from _member(_place(digest), layout.blobs[digest], advance)
    yield from _member("index.json", layout.index)
    yield from _member("manifest.json", documents.dumps(layout.docker))
    yield from _member("oci-layout", _MARK)
    yield archive.TAR_END


def export(image: ImageRecord | IndexRecord, store: Store, destination: Path) -> None:
    """Write an image as an OCI layout: a folder, or an archive where the name ends in `.tar`.

    It appears in one step. A folder shares its blobs with the store as hard links where that is possible.

    Raises:
        InputError: something else is in the place.
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
            # Whoever made it, its mode is that of any new folder here.
            (folder / "new").mkdir()
            draft.chmod((folder / "new").stat().st_mode & 0o777)
            _replace_folder(draft, destination)


def _entry(image: ImageRecord | IndexRecord, store: Store, reference: str) -> dict[str, Any]:
    """Describe the image, or the index of several, as the layout's only entry."""
    size = store.blob(image.manifest).stat().st_size
    entry: dict[str, Any] = {"mediaType": INDEX_TYPE, "digest": image.manifest, "size": size}
    if isinstance(image, ImageRecord):
        entry = IndexEntry(platform=image.platform, digest=image.manifest, size=size, labels={}).descriptor
    # Podman's own images are under `localhost/`; any other name without a host means Docker Hub.
    full = reference if reference.startswith("localhost/") else f"docker.io/library/{reference}"
    annotations = {
        label_names.REF_NAME: reference.rpartition(":")[2],
        # Where containerd, and so `docker load` on its store, looks for the full name.
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
