"""What an image's files are once all layers are applied: the same question for any engine's image.

Layers are applied as the image specification says (image-spec 1.1, layer.md, "Applying Changesets"): a later
layer's entry takes the place of an earlier one, `.wh.NAME` removes one, `.wh..wh..opq` empties a folder.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

from imagebuilder.errors import StoreError
from imagebuilder.store import ImageRecord, Store

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_REMOVED = ".wh."
_EMPTIED = ".wh..wh..opq"
_KINDS = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One path of an image.

    Attributes:
        kind: `file`, `folder`, `link`, `device` or `pipe`.
        mode: permission bits, with set-user-id and the like; 0 for a link, which has none.
        owner: user and group, as numbers.
        target: where a symbolic link leads.
        sha256: of a file's content, hex.
        capability: the file's capabilities, as the kernel keeps them (`security.capability`).

    """

    kind: str
    mode: int
    owner: tuple[int, int]
    target: str = ""
    sha256: str = ""
    capability: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A path that is not the same in two images; `what` names the properties that differ."""

    path: str
    what: tuple[str, ...]
    before: Item | None
    after: Item | None


def of_image(image: ImageRecord, store: Store) -> dict[str, Item]:
    """List every path of an image of the store; paths are relative to the root.

    Raises:
        StoreError: a layer is missing or cannot be read.

    """
    return of_layers([store.blob(layer.record.digest) for layer in image.layers])


def of_layers(blobs: Sequence[Path]) -> dict[str, Item]:
    """Apply layers, the lowest first: tars, plain or gzip.

    Raises:
        StoreError: one cannot be read as that.

    """
    items: dict[str, Item] = {}
    for blob in blobs:
        _apply(blob, items)
    return items


def read(blobs: Sequence[Path], path: str) -> bytes:
    """Read one file of an image: the content that the uppermost layer gives it.

    Raises:
        StoreError: no layer has such a file, or one cannot be read.

    """
    found: list[bytes] = []

    def look(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        if entry.isreg() and _path(entry.name) == path:
            content = tar.extractfile(entry)
            found.append(content.read() if content is not None else b"")

    for blob in blobs:
        _walk(blob, look)
    if not found:
        raise StoreError(f"no layer has the file {path}", where=str(blobs[0] if blobs else path))
    return found[-1]


def compare(before: Mapping[str, Item], after: Mapping[str, Item]) -> tuple[Change, ...]:
    """Name every path that differs, by path."""
    changes = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            changes.append(Change(path=path, what=("presence",), before=old, after=new))
        elif old != new:
            fields = ("kind", "mode", "owner", "target", "sha256", "capability")
            what = tuple(name for name in fields if getattr(old, name) != getattr(new, name))
            changes.append(Change(path=path, what=what, before=old, after=new))
    return tuple(changes)


def _walk(blob: Path, look: Callable[[tarfile.TarFile, tarfile.TarInfo], None]) -> None:
    """Look at every entry of a layer, in its order."""
    try:
        with blob.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with (
            cast("BinaryIO", igzip.open(blob, "rb") if packed else blob.open("rb")) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            for entry in tar:
                look(tar, entry)
    except (OSError, EOFError, zlib.error, tarfile.TarError, igzip.BadGzipFile) as error:
        raise StoreError(f"a layer cannot be read: {error}", where=str(blob)) from error


def _path(name: str) -> str:
    return posixpath.normpath(f"/{name}").lstrip("/")


def _apply(blob: Path, items: dict[str, Item]) -> None:
    """Apply one layer. What it removes is of the layers below, so removals come before its own entries."""
    removed: list[str] = []
    emptied: list[str] = []
    fresh: dict[str, Item] = {}

    def look(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = _path(entry.name)
        folder, name = posixpath.split(path)
        if name == _EMPTIED:
            emptied.append(folder)
        elif name.startswith(_REMOVED):
            removed.append(posixpath.join(folder, name.removeprefix(_REMOVED)))
        elif path:
            fresh[path] = _item(tar, entry, fresh, items)

    _walk(blob, look)
    _remove(items, removed, emptied)
    # A folder that becomes something else takes what was in it along.
    changed = [p for p, item in fresh.items() if item.kind != "folder" and _is_folder(items.get(p))]
    _remove(items, changed, ())
    items.update(fresh)


def _item(
    tar: tarfile.TarFile, entry: tarfile.TarInfo, fresh: Mapping[str, Item], below: Mapping[str, Item]
) -> Item:
    if entry.islnk():
        # Another name of a file that was there before: the same file.
        target = _path(entry.linkname)
        found = fresh.get(target) or below.get(target)
        if found is None:
            raise tarfile.ReadError(f"{entry.name} is a hard link to {target}, which is not there")
        return found
    kind = _KINDS.get(entry.type, "file")
    return Item(
        kind=kind,
        mode=0 if kind == "link" else stat.S_IMODE(entry.mode),
        owner=(entry.uid, entry.gid),
        target=entry.linkname if kind == "link" else "",
        sha256=_hash(tar, entry) if kind == "file" else "",
        capability=entry.pax_headers.get("SCHILY.xattr.security.capability", ""),
    )


def _hash(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    content = tar.extractfile(entry)
    while content is not None and (chunk := content.read(_CHUNK)):
        digest.update(chunk)
    return digest.hexdigest()


def _is_folder(item: Item | None) -> bool:
    return item is not None and item.kind == "folder"


def _remove(items: dict[str, Item], removed: Iterable[str], emptied: Iterable[str]) -> None:
    """Drop paths with all below them, and all below folders that are emptied."""
    gone = set(removed)
    hollow = set(emptied)
    if not gone and not hollow:
        return
    for path in list(items):
        above = path
        while above:
            parent = posixpath.dirname(above)
            if above in gone or parent in hollow:
                del items[path]
                break
            above = parent
