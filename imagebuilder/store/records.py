"""Records of layers and images in the store, as JSON that is validated whenever it is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from imagebuilder.core import documents, platforms

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0)]


@checked_dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """A finished layer: digest and size of its blob, diffID and size of the tar inside, media type.

    `toc` is the digest of the table of contents in the blob, "" if it has none; see `layers.stargz`.
    """

    digest: Digest
    diff_id: Digest
    size: Size
    unpacked: Size
    media_type: str
    toc: Digest | Literal[""] = ""

    @property
    def is_empty(self) -> bool:
        """Whether the layer has no files; see `EMPTY_LAYER`."""
        return self == EMPTY_LAYER


EMPTY_LAYER = LayerRecord(
    digest=documents.digest_of(b""), diff_id=documents.digest_of(b""), size=0, unpacked=0, media_type=""
)
"""The record of a layer without files. It has no blob, and images leave it out."""


@checked_dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """A layer in its image: its title, and the pin that it belongs to."""

    record: LayerRecord
    title: str
    component: str


@checked_dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image: its blobs' digests, its tags and the checksum of its lock.

    Attributes:
        name: the recipe's name.
        manifest, config: digests; the manifest's digest is the image's.
        size: bytes of all its blobs: manifest, config and compressed layers.
        tag: the main one, the first of `tags`.
        lock: the lock's checksum, hex sha256.
        layers: the lowest first.
        tags: the tags to push.
        platform: the image's platform, as in `linux/arm64`.
        siblings: all platforms of its recipe.

    """

    name: str
    manifest: Digest
    config: Digest
    size: Size
    tag: str
    lock: str
    layers: tuple[ImageLayer, ...]
    tags: tuple[str, ...]
    platform: str = platforms.DEFAULT
    siblings: tuple[str, ...] = (platforms.DEFAULT,)

    @property
    def key(self) -> str:
        """The name of its record. Names of recipes never have two dashes in a row."""
        if self.platform == platforms.DEFAULT:
            return self.name
        return f"{self.name}--{self.platform.replace('/', '-')}"

    @property
    def images(self) -> tuple[ImageRecord, ...]:
        """The images that a push sends: only this one."""
        return (self,)


@checked_dataclass(frozen=True, kw_only=True)
class IndexRecord:
    """The images of one recipe for several platforms, and the index that lists them.

    Attributes:
        name: the recipe's name.
        manifest: digest of the index.
        tag: the main one, the first of `tags`.
        tags: the tags to push.
        lock: checksum of the lock file, hex sha256.
        images: one for each platform, sorted by platform.

    """

    name: str
    manifest: Digest
    tag: str
    tags: tuple[str, ...]
    lock: str
    images: tuple[ImageRecord, ...]

    @property
    def size(self) -> int:
        """Bytes of all images' blobs; shared blobs count once."""
        layers = {layer.record.digest: layer.record.size for image in self.images for layer in image.layers}
        own = (image.size - sum(layer.record.size for layer in image.layers) for image in self.images)
        return sum(layers.values()) + sum(own)


@checked_dataclass(frozen=True, kw_only=True)
class KeptLayer:
    """A layer's record with its key, so that a record under another layer's file name is not believed."""

    key: str
    layer: LayerRecord


@checked_dataclass(frozen=True, kw_only=True)
class AwayBlob:
    """A blob that a registry has: its size, and the repository, as `host/path`."""

    size: Size
    repository: str


@checked_dataclass(frozen=True, kw_only=True)
class Extent:
    """A part of a download that a blob has too: where it begins in both, and its length, in bytes."""

    start: Size
    size: Size
    blob: Digest
    offset: Size

    def overlaps(self, other: Extent) -> bool:
        """Return whether both have a byte of the download."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@checked_dataclass(frozen=True, kw_only=True)
class SparseDownload:
    """A download of which blobs have parts; `punched`: the file has holes there, see `store.sparse`."""

    size: Size
    punched: bool
    extents: tuple[Extent, ...]

    @property
    def spared(self) -> int:
        """The bytes that the file does not take on the disk."""
        return sum(extent.size for extent in self.extents) if self.punched else 0

    @property
    def is_sound(self) -> bool:
        """Whether the extents are in order, do not overlap, and are inside of the file."""
        position = 0
        for extent in self.extents:
            if extent.start < position:
                return False
            position = extent.start + extent.size
        return position <= self.size


AWAY = TypeAdapter(AwayBlob)
SPARSE = TypeAdapter(SparseDownload)
LAYER = TypeAdapter(KeptLayer)
IMAGE = TypeAdapter(ImageRecord)
INDEX = TypeAdapter(IndexRecord)
