"""Read layers as streams: a tar, plain or packed with gzip or zstd (its first bytes tell), and its entries.

Magic numbers: RFC 1952 section 2.3.1 (gzip), RFC 8878 section 3.1.1 (zstd). The tar is POSIX pax with GNU's
long names (tar(5)).

Python's tarfile has no limits: it reads a header of a gigabyte into memory, recurses into one header after
another, and keeps a list of all entries. `entries` has limits, because other people's layers are untrusted.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.core.streams import HashedReader

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_BLOCK = 512
_BUFFER = 1 << 18

# A megabyte of zstd may unpack to 32 GiB. Real layers shrink to a half or a tenth; one of zeros alone may
# still have a gigabyte.
_RATIO = 100
_SPARE = 1 << 30
# The limit of Go's archive/tar, by which Docker and containerd read layers.
_LONGEST_HEADER = 1 << 20
_LONGEST_PATH = 4096  # Linux's PATH_MAX
# A long name, a long link, and pax headers for all files and for one.
_MOST_HEADERS = 4
_LARGEST_FILE = 1 << 40
_LARGEST_ID = 2**32 - 2
_NUMBER = re.compile(rb"[0-9]{1,19}")
_TIME = re.compile(rb"(-?[0-9]{1,18})(?:\.[0-9]*)?")
_CAPABILITY = b"SCHILY.xattr.security.capability"
_KEPT = frozenset({b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", _CAPABILITY})
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_SPARSE = b"GNU.sparse."
# These have no content, whatever their header's size says.
_EMPTY = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TarEntry:
    """One entry of a tar; `capability` is the raw `security.capability` attribute, mostly empty.

    `device` has the major and minor number of a device.
    """

    path: str
    kind: bytes
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    link: str = ""
    capability: bytes = b""
    device: tuple[int, int] = (0, 0)

    @property
    def is_folder(self) -> bool:
        return self.kind == tarfile.DIRTYPE

    @property
    def is_file(self) -> bool:
        return self.kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)

    @property
    def is_symlink(self) -> bool:
        return self.kind == tarfile.SYMTYPE

    @property
    def is_hardlink(self) -> bool:
        return self.kind == tarfile.LNKTYPE


def open_layer(path: Path) -> BinaryIO:
    """Open the tar in a layer's blob for reading from its start to its end.

    Reading raises one of `errors()` if the blob is damaged, or unpacks to far more than a layer would.

    Raises:
        OSError: it cannot be read.

    """
    with path.open("rb") as file:
        magic = file.read(4)
    return _unpacking(magic, path, path.stat().st_size)


def digests(path: Path, advance: Advance = no_advance) -> tuple[str, str, int]:
    """Read a layer's blob once, and compute the values of its record.

    Args:
        path: the blob.
        advance: called with the number of bytes read.

    Returns:
        The blob's digest, and the diffID and size of the tar: "" and 0 if the blob cannot be unpacked.

    Raises:
        OSError: it cannot be read.

    """
    diff_id, size = hashlib.sha256(), 0
    with path.open("rb") as raw:
        file = HashedReader(raw, advance)
        magic = raw.read(4)
        raw.seek(0)
        try:
            stream = _unpacking(magic, file, path.stat().st_size)
            while data := stream.read(_CHUNK):
                diff_id.update(data)
                size += len(data)
            unpacks = True
        except errors():
            unpacks = False
        while file.read(_CHUNK):  # the digest covers bytes after the packed stream, too
            pass
    return (file.digest, f"sha256:{diff_id.hexdigest()}", size) if unpacks else (file.digest, "", 0)


def _unpacking(magic: bytes, source: Path | HashedReader, size: int) -> BinaryIO:
    limit = _SPARE + _RATIO * size
    # Imported late: commands that read no layers start faster. Python's own gzip takes three times as long.
    if magic.startswith(_GZIP):
        from isal import igzip

        return _bounded(cast("BinaryIO", igzip.open(source, "rb")), limit)
    if magic == _ZSTD:
        # libzstd itself refuses a window of more than 128 MiB.
        return _bounded(cast("BinaryIO", zstd().open(source, "rb")), limit)
    return cast("BinaryIO", source) if isinstance(source, HashedReader) else source.open("rb")


def without_filler(archive: tarfile.TarFile, data: bytes, before: int = 0) -> bytes:
    """Return an archive's last bytes without the zeros with which tarfile fills the last 10 kB.

    Podman's reader of uploaded archives ends at the two zero blocks (tar(5)). If it has ended before all of
    the zeros are sent, Podman answers with "broken pipe".

    Args:
        archive: The closed archive.
        data: What was written of it last.
        before: How many bytes were written earlier.

    """
    return data[: archive.offset - before]


def errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged layer may raise."""
    from isal import igzip, isal_zlib

    # Raised for data that is not deflate. isal's type hints do not say that it is an exception.
    broken = cast("type[Exception]", isal_zlib.error)
    others = (zlib.error, broken, igzip.BadGzipFile, zstd().ZstdError)
    return (tarfile.TarError, OSError, EOFError, ValueError, *others)


def entries(stream: BinaryIO) -> Iterator[tuple[TarEntry, BinaryIO]]:
    """Yield each entry of a tar and its content. The content can be read until the next entry is requested.

    Raises:
        tarfile.TarError: the tar is damaged, or exceeds the limits above.

    """
    said: dict[bytes, bytes] = {}
    everywhere: dict[bytes, bytes] = {}
    headers = 0
    while (info := _next_header(stream)) is not None:
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise _refused("is a sparse file, which layers do not have", info.name)
        if info.type in _EXTENDED or info.type == tarfile.SOLARIS_XHDTYPE:
            headers += 1
            if headers > _MOST_HEADERS:
                raise _refused(f"has more than {_MOST_HEADERS} headers", info.name)
            _extend(info, stream, everywhere if info.type == tarfile.XGLTYPE else said)
            continue
        entry = _entry(info, {**everywhere, **said})
        said, headers = {}, 0
        size = 0 if info.type in _EMPTY else entry.size
        content = _Content(stream, size)
        yield entry, cast("BinaryIO", content)
        content.skip(-size % _BLOCK)


def _next_header(stream: BinaryIO) -> tarfile.TarInfo | None:
    block = stream.read(_BLOCK)
    # A block of zeros ends a tar. Some tars lack it and simply stop after the last file: accept them.
    if not block.strip(b"\0"):
        return None
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")


def _extend(info: tarfile.TarInfo, stream: BinaryIO, said: dict[bytes, bytes]) -> None:
    """Read an extended header, which describes the next entry."""
    if not 0 <= info.size <= _LONGEST_HEADER:
        raise _refused(f"has a header of {info.size} bytes; at most {_LONGEST_HEADER} are read", info.name)
    content = _Content(stream, info.size)
    data = content.read()
    content.skip(-info.size % _BLOCK)
    if info.type == tarfile.GNUTYPE_LONGNAME:
        said[b"path"] = data.partition(b"\0")[0]
    elif info.type == tarfile.GNUTYPE_LONGLINK:
        said[b"linkpath"] = data.partition(b"\0")[0]
    else:
        said.update(_records(data, info.name))


def _records(data: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a pax header that we need; each is a line of length, key and value."""
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 20].partition(b" ")
        end = at + int(digits) if space and _NUMBER.fullmatch(digits) else 0
        key, equals, value = data[at + len(digits) + 1 : end].partition(b"=")
        if not at < end <= len(data) or not equals or not value.endswith(b"\n"):
            raise _refused("has a damaged header", name)
        if key.startswith(_SPARSE):
            raise _refused("is a sparse file, which layers do not have", name)
        if key in _KEPT:
            yield key, value[:-1]
        at = end


def _entry(info: tarfile.TarInfo, said: dict[bytes, bytes]) -> TarEntry:
    """Combine an entry's header with its extended headers."""
    name = info.name
    path, link = (
        _path(said.get(key, b""), old) for key, old in ((b"path", name), (b"linkpath", info.linkname))
    )
    return TarEntry(
        path=path,
        kind=info.type,
        mode=info.mode & 0o7777,
        uid=_within(said.get(b"uid"), info.uid, _LARGEST_ID, name),
        gid=_within(said.get(b"gid"), info.gid, _LARGEST_ID, name),
        mtime=_time(said.get(b"mtime"), int(info.mtime), name),
        size=_within(said.get(b"size"), info.size, _LARGEST_FILE, name),
        link=link if info.type in (tarfile.LNKTYPE, tarfile.SYMTYPE) else "",
        capability=said.get(_CAPABILITY, b""),
        device=(info.devmajor, info.devminor) if info.type in (tarfile.CHRTYPE, tarfile.BLKTYPE) else (0, 0),
    )


def _path(said: bytes, old: str) -> str:
    path = said.decode("utf-8", "surrogateescape") if said else old
    if len(path) > _LONGEST_PATH or "\0" in path:
        raise _refused(f"has a name of more than {_LONGEST_PATH} characters, or with a zero byte", path)
    return path


def _within(said: bytes | None, number: int, most: int, name: str) -> int:
    if said is not None:
        number = int(said) if _NUMBER.fullmatch(said) else -1
    if not 0 <= number <= most:
        raise _refused("has a size, user or group that is negative or far too large", name)
    return number


def _time(said: bytes | None, number: int, name: str) -> int:
    if said is not None:
        match = _TIME.fullmatch(said)
        if match is None:
            raise _refused("has a time that is not a number", name)
        number = int(match[1])
    return max(min(number, 2**62), -(2**62))


def _refused(what: str, name: str) -> tarfile.ReadError:
    # The name is escaped and shortened, because people will see it.
    return tarfile.ReadError(f"the entry {name[:60]!a} {what}")


class _Content(io.RawIOBase):
    """The content of one entry, a part of the stream."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        super().__init__()
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(wanted)
        if len(data) < wanted:
            raise tarfile.ReadError("the tar ends within a file")
        self._left -= wanted
        return data

    def skip(self, more: int) -> None:
        """Skip the rest of the content, and `more` bytes of padding after it."""
        self._left += more
        while self._left:
            self.read(_BUFFER)


class _Bounded(io.RawIOBase):
    """An unpacked blob, up to a limit."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        super().__init__()
        self._stream, self._limit, self._left = stream, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._stream.read(len(view))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {self._limit} bytes, {_RATIO} times its size")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _bounded(stream: BinaryIO, limit: int) -> BinaryIO:
    return io.BufferedReader(_Bounded(stream, limit), _BUFFER)


def zstd() -> Any:
    """Return the module that reads zstd: Python's own since 3.14, before that the backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
