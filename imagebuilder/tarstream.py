"""Layers as streams: a tar that is plain, gzip or zstd, told apart by its first bytes.

Magic numbers: RFC 1952 section 2.3.1 (gzip), RFC 8878 section 3.1.1 (zstd).
"""

from __future__ import annotations

import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def open_layer(path: Path) -> BinaryIO:
    """Open the tar in a layer's blob for reading from its start to its end.

    Raises:
        OSError: it cannot be read.

    """
    with path.open("rb") as file:
        magic = file.read(4)
    # Imported here: what reads no layers starts faster without them. Python's own gzip takes three times
    # as long.
    if magic.startswith(_GZIP):
        from isal import igzip

        return cast("BinaryIO", igzip.open(path, "rb"))
    if magic == _ZSTD:
        return cast("BinaryIO", _zstd().open(path, "rb"))
    return path.open("rb")


def errors() -> tuple[type[Exception], ...]:
    """Name what reading a damaged layer may raise."""
    from isal import igzip, isal_zlib

    # For data that is not deflate; its types do not say that it is an exception.
    broken = cast("type[Exception]", isal_zlib.error)
    others = (zlib.error, broken, igzip.BadGzipFile, _zstd().ZstdError)
    return (tarfile.TarError, OSError, EOFError, ValueError, *others)


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
