"""A root file system's tar that another tool wrote, as a layer: the same files give the same bytes.

Times become the epoch, names of owners go, and of the extended attributes the one that belongs to a file
stays (as in `layers.system`). The order is the writer's own: BuildKit walks folders by name.
"""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.errors import BuildError
from imagebuilder.layers.archive import TAR_END, compress_tar, padding
from imagebuilder.layers.pieces import Pieces
from imagebuilder.progress import Advance
from imagebuilder.store import LayerRecord, Store

_CHUNK = 1 << 20
_CAPABILITY = "SCHILY.xattr.security.capability"
# What the kernel or the container's engine fills: a builder leaves empty folders where it had mounted them.
_MOUNTED = ("dev", "proc", "sys")


def build_tar_layer(tar: Path, store: Store, advance: Advance) -> LayerRecord:
    """Make a layer of a tar.

    Args:
        tar: not compressed; POSIX or GNU.
        store: where the blob goes.
        advance: told bytes of the layer's tar.

    Raises:
        BuildError: it is not a tar, or broken off.
        StoreError: the blob cannot be written.

    """
    try:
        _require_end(tar)
        with tarfile.open(tar, "r:") as source:
            return compress_tar(cast("BinaryIO", Pieces(_pieces(source))), store, advance)
    except tarfile.TarError as error:
        raise BuildError(f"the builder gave no whole root file system: {error}", where=tar.name) from error


def _require_end(tar: Path) -> None:
    """Look for the two empty blocks: tarfile takes a tar that broke off between two files for a whole one."""
    with tar.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(TAR_END)))
        if file.read() != TAR_END:
            raise tarfile.ReadError("its end is missing")


def _pieces(source: tarfile.TarFile) -> Iterator[bytes]:
    for entry in source:
        path = posixpath.normpath(f"/{entry.name}").lstrip("/")
        top, _, rest = path.partition("/")
        if not path or (top in _MOUNTED and (rest or top == "dev")):
            continue
        yield _header(entry, path)
        if entry.isreg():
            content = source.extractfile(entry)
            while content is not None and (chunk := content.read(_CHUNK)):
                yield chunk
            yield padding(entry.size)
    yield TAR_END


def _header(entry: tarfile.TarInfo, path: str) -> bytes:
    made = tarfile.TarInfo(path)
    made.type, made.mode, made.uid, made.gid = entry.type, entry.mode, entry.uid, entry.gid
    made.size = entry.size if entry.isreg() else 0
    made.linkname = posixpath.normpath(f"/{entry.linkname}").lstrip("/") if entry.islnk() else entry.linkname
    made.devmajor, made.devminor = entry.devmajor, entry.devminor
    if value := entry.pax_headers.get(_CAPABILITY):
        made.pax_headers = {_CAPABILITY: value}
    return made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
