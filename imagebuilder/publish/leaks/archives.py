"""Archives and compressed files inside layers: recognises them, and reads their members within limits.

Magic numbers: RFC 1952 (gzip), RFC 1950 (zlib), RFC 8878 (zstd), the descriptions of bzip2, of .xz, of ZIP
(APPNOTE section 4.3), of tar (POSIX pax) and of Debian's packages, deb(5).
"""

from __future__ import annotations

import bz2
import lzma
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from imagebuilder.core import tarstream

# The bytes that `kind` needs of a file.
HEAD = 560
# Files that must be read from the end or collected before they are opened: beyond this size, on disk.
MEMORY = 1 << 24
_DEEPEST = 6
# A zip's directory is read as a whole; one of this size names half a million files.
_DIRECTORY = 1 << 25
_CHUNK = 1 << 18
# Memory that a header may request; `xz -9` needs 65 MB.
_XZ_MEMORY = 1 << 28
_AR, _AR_HEADER = b"!<arch>\n", 60
_MAGIC = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\3\4", "zip"),
    (_AR + b"debian-binary", "deb"),
)
_LZMA = b"\x5d\0\0"
_GIT_OBJECT = re.compile(r"(?:^|/)objects/[0-9a-f]{2}/[0-9a-f]{38,62}$")
_SUFFIX = re.compile(r"\.(?:gz|bz2|xz|lzma|zst|z)$", re.IGNORECASE)


class ExceededError(Exception):
    """An archive exceeds a limit of the search; the message says which."""


class Stream(Protocol):
    """A stream that can be read from start to end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(kw_only=True)
class UnpackBudget:
    """Limits on what one file of a layer may unpack to."""

    bytes: int
    members: int = 200_000

    def spend(self, count: int) -> None:
        """Subtract bytes.

        Raises:
            ExceededError: the limit is exceeded.

        """
        self.bytes -= count
        if self.bytes < 0:
            raise ExceededError("it unpacks to too many bytes")

    def enter(self) -> None:
        """Subtract a member.

        Raises:
            ExceededError: the limit is exceeded.

        """
        self.members -= 1
        if self.members < 0:
            raise ExceededError("it holds too many files")


@dataclass(kw_only=True)
class Metered:
    """A stream that counts its bytes against the limits."""

    stream: Stream
    budget: UnpackBudget
    first: bytes = b""

    def read(self, size: int, /) -> bytes:
        if self.first:
            data, self.first = self.first[:size], self.first[size:]
            return data
        data = self.stream.read(size)
        self.budget.spend(len(data))
        return data


def require_depth(depth: int) -> None:
    """Refuse archives that are nested too deeply.

    Raises:
        ExceededError: they are.

    """
    if depth > _DEEPEST:
        raise ExceededError("archives are nested too deeply")


def copy() -> BinaryIO:
    """Return a temporary file: in memory, or on disk once it is large."""
    return cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=MEMORY))


def kind(head: bytes, name: str) -> str:
    """Return the kind of an archive by its first bytes; "" for other files."""
    if head[257:262] == b"ustar":
        return "tar"
    if head.startswith(b"#!") and b"\nPK\3\4" in head:
        return "zip"
    if head[:1] == b"\x78" and _GIT_OBJECT.search(name):
        return "zlib"
    if head.startswith(_LZMA) and name.endswith((".lzma", ".tlz")):
        return "xz"
    return next((found for magic, found in _MAGIC if head.startswith(magic)), "")


def inner_name(name: str) -> str:
    """Return the name of the file in a compressed file."""
    return re.sub(r"\.t[gx]z$|\.tbz2?$|\.tzst$", ".tar", _SUFFIX.sub("", name))


def members(kind: str, stream: BinaryIO | Stream) -> Iterator[tuple[str, Stream]]:
    """Yield the members of an archive, each to be read before the next; a compressed file's has no name.

    Raises:
        ExceededError: its directory is too long.
        ValueError: it is damaged or encrypted; also the exceptions in `errors`.

    """
    if kind == "zip":
        yield from _zip(stream)
    elif kind == "deb":
        yield from _deb(stream)
    else:
        makers: dict[str, Callable[[], Any]] = {
            "gzip": lambda: zlib.decompressobj(31),
            "zlib": zlib.decompressobj,
            "bzip2": bz2.BZ2Decompressor,
            "xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
            "zstd": _zstd,
        }
        yield "", _Unpacked(stream, makers[kind])


def errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged archive may raise."""
    return (
        *tarstream.errors(), zipfile.BadZipFile, NotImplementedError, RuntimeError, lzma.LZMAError,
        struct.error, LookupError, MemoryError,
    )  # fmt: skip


class _Unpacked:
    """The data of a compressed file: all of its members, joined."""

    def __init__(self, stream: Stream, make: Callable[[], Any]) -> None:
        self._stream = stream
        self._make = make
        self._unpacker = make()
        self._waiting = b""
        self._fresh = True

    def read(self, size: int, /) -> bytes:
        while True:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data.lstrip(b"\0") or self._stream.read(_CHUNK).lstrip(b"\0")
                if not rest:
                    return b""
                self._unpacker, self._waiting, self._fresh = self._make(), rest, True
            data = self._waiting or self._more()
            try:
                made = self._unpacker.decompress(data, size)
            except tuple(errors()):
                # Other data may follow the last member, as in a signed file.
                if self._fresh and data:
                    return b""
                raise
            self._waiting = getattr(self._unpacker, "unconsumed_tail", b"")
            if made:
                self._fresh = False
                return bytes(made)
            if not data and not self._unpacker.eof:
                raise EOFError("it ends in the middle")

    def _more(self) -> bytes:
        """Read more, unless the decompressor still has input."""
        return self._stream.read(_CHUNK) if getattr(self._unpacker, "needs_input", True) else b""


def _zip(stream: BinaryIO | Stream) -> Iterator[tuple[str, Stream]]:
    with copy() as file:
        while data := stream.read(_CHUNK):
            file.write(data)
        _require_directory(file)
        file.seek(0)
        locked = ""
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                if member.flag_bits & 1:
                    locked = member.filename
                    continue
                with archive.open(member) as content:
                    yield member.filename, content
        if locked:
            raise ValueError("it is encrypted")


def _require_directory(file: BinaryIO) -> None:
    """Refuse a zip whose directory would take gigabytes of memory."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 66_000))
    tail = file.read()
    end, end64 = tail.rfind(b"PK\5\6"), tail.rfind(b"PK\6\6")
    length = int.from_bytes(tail[end + 12 : end + 16], "little") if end >= 0 else 0
    if end64 >= 0:
        length = int.from_bytes(tail[end64 + 40 : end64 + 48], "little")
    if length > _DIRECTORY:
        raise ExceededError("its directory is too long")


def _deb(stream: Stream) -> Iterator[tuple[str, Stream]]:
    stream.read(len(_AR))
    while len(header := _exactly(stream, _AR_HEADER)) == _AR_HEADER:
        size = int(header[48:58])
        content = _Part(stream=stream, left=size)
        yield header[:16].decode("latin-1").strip().rstrip("/"), content
        while content.read(_CHUNK):
            pass
        stream.read(size % 2)


@dataclass(kw_only=True)
class _Part:
    stream: Stream
    left: int

    def read(self, size: int, /) -> bytes:
        data = self.stream.read(min(size, self.left)) if self.left > 0 else b""
        self.left -= len(data)
        return data


def _exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


def _zstd() -> Any:
    return tarstream.zstd().ZstdDecompressor()
