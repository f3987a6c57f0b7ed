"""The members of a wheel's zip file: where their compressed bytes are, and the checks before these are used.

The directory at the end of a zip file lists its members, and each member repeats its entry in its own header.
Some unpackers believe the directory and others the headers. So a wheel is refused if the two disagree, if
members overlap, or if a path could lead an unpacker out of its folder. Format: PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.layers.archive import path_problem

CHUNK = 1 << 20

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_MAGIC = b"PK\x06\x07"
# The values in the short record that say: the real value did not fit, see the long record.
_MOST = (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
# The sizes that may follow a member's data (APPNOTE 4.3.9): with or without a signature, 4 or 8 bytes each.
_FOLLOWING = (struct.Struct("<III"), struct.Struct("<IQQ"))
_FOLLOWING_MAGIC = b"PK\x07\x08"
_FOLLOWING_MOST = 25
# An extra field with the member's name in UTF-8 (APPNOTE 4.6.9); some readers prefer it to the name itself.
_UNICODE_PATH = 0x7075
# The errors that zipfile raises for a file that is not a zip file.
NO_ZIP = (zipfile.BadZipFile, ValueError, EOFError, OSError, OverflowError, struct.error)
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_PATCHED = 0x0020
_UTF8 = 0x0800
_SIZES_FOLLOW = 0x0008
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ZIP64 = 0xFFFFFFFF
_ZIP64_EXTRA = 1
_ZIP64_SIZES = struct.Struct("<QQ")
# For members that are read into memory: RECORD, METADATA, scripts. The largest known RECORD has a few
# megabytes.
MEMORY_LIMIT = 16 << 20
# Once parsed, the zip directory takes about twelve times its size in memory. torch's has one megabyte.
_DIRECTORY_LIMIT = 32 << 20
# The unpacked size of a whole wheel; the largest known has five gigabytes.
_UNPACKED_LIMIT = 1 << 35
HINT = "the wheel is damaged, or was made by a broken tool; have it built again, or take another version"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a wheel.

    Attributes:
        wheel: the wheel's file name, for messages.
        file: the wheel's path on this host.
        name: path in the wheel.
        stored: whether the data is uncompressed; otherwise it is a raw deflate stream.
        start, packed: offset of the data in the wheel, and its length, in bytes.
        size, crc: length in bytes and CRC-32 of the content.
        executable: whether the file mode in the zip directory has an x bit.

    """

    wheel: str
    file: Path
    name: str
    stored: bool
    start: int
    packed: int
    size: int
    crc: int
    executable: bool

    def refuse(self, reason: str) -> BuildError:
        """Make an error about this member; the message is its name followed by `reason`."""
        return refuse(self.wheel, self.name, reason)


@contextmanager
def opened(file: str, path: Path) -> Iterator[int]:
    """Open a wheel for `os.pread`, which several threads can use on one descriptor."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BuildError(
            f"cannot be read: {error.strerror}", where=file, hint="build again: missing files are downloaded"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def packed_chunks(descriptor: int, member: Member) -> Iterator[bytes]:
    """Read a member's data without unpacking it, a megabyte at a time."""
    position, end = member.start, member.start + member.packed
    while position < end:
        wanted = min(CHUNK, end - position)
        chunk = os.pread(descriptor, wanted, position)
        if len(chunk) != wanted:
            raise member.refuse("is cut off: the wheel ends in the middle of it")
        yield chunk
        position += len(chunk)


def content(descriptor: int, member: Member, limit: int = MEMORY_LIMIT) -> bytes:
    """Unpack a small member into memory."""
    if member.size > limit:
        raise member.refuse(f"is too large: {member.size} bytes")
    unpacking = Unpacking(member)
    parts = [part for chunk in packed_chunks(descriptor, member) for part in unpacking.feed(chunk)]
    unpacking.finish()
    return b"".join(parts)


class Unpacking:
    """Unpacks one member piece by piece, and checks its size and CRC against the zip directory."""

    def __init__(self, member: Member) -> None:
        # Imported here, so that commands that unpack nothing start faster.
        from isal import isal_zlib

        self._member = member
        self._error: Any = isal_zlib.error
        self._checksum = isal_zlib.crc32
        self._inflate = None if member.stored else isal_zlib.decompressobj(-15)
        self._size = 0
        self._crc = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Unpack the next bytes of the data, and yield the result in pieces of at most 4 MiB."""
        while data:
            if self._inflate is None:
                piece, data = data, b""
            elif self._inflate.eof:
                raise self._member.refuse("has bytes after the end of its compressed data")
            else:
                try:
                    piece = self._inflate.decompress(data, 4 * CHUNK)
                except self._error as error:
                    raise self._member.refuse(f"does not unpack: {error}") from None
                data = self._inflate.unused_data or self._inflate.unconsumed_tail
            if piece:
                self._size += len(piece)
                if self._size > self._member.size:
                    raise self._member.refuse(f"unpacks to more than {self._member.size} bytes")
                self._crc = self._checksum(piece, self._crc)
                yield piece

    def finish(self) -> None:
        """Check that the data is complete, and that its size and CRC are those of the zip directory.

        Raises:
            BuildError: they are not.

        """
        if self._inflate is not None and not self._inflate.eof:
            raise self._member.refuse("is cut off: its compressed data does not end")
        if self._size != self._member.size:
            raise self._member.refuse(f"unpacks to {self._size} bytes, not {self._member.size}")
        if self._crc != self._member.crc:
            raise self._member.refuse("has another CRC than in the zip directory")


def refuse(wheel: str, name: str, reason: str) -> BuildError:
    """Make an error about one path in a wheel; the message is the path followed by `reason`."""
    return BuildError(f"`{printable(name)}` {reason}", where=wheel, hint=HINT)


def listed(file: str, path: Path, descriptor: int) -> tuple[list[zipfile.ZipInfo], int]:
    """Read the zip directory of a wheel, after checking that it is not too large.

    Returns:
        Its entries, and the offset at which it begins.

    Raises:
        BuildError: the wheel is not a zip file, or zip readers could understand it differently.

    """
    try:
        end = _end(file, descriptor)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            start = archive.start_dir
    except (*NO_ZIP, NotImplementedError) as error:
        raise BuildError(f"is not a zip file: {printable(str(error))}", where=file, hint=HINT) from None
    if (len(infos), start) != (end.count, end.start):
        raise _ambiguous(file, f"lists {len(infos)} files at {start}, not {end.count} at {end.start}")
    if sum(info.file_size for info in infos) > _UNPACKED_LIMIT:
        raise BuildError(f"unpacks to more than {_UNPACKED_LIMIT >> 30} GiB", where=file, hint=HINT)
    return infos, start


def read_members(file: str, path: Path, descriptor: int) -> tuple[Member, ...]:
    """Read the zip directory of a wheel, and check it against the header of each member.

    Args:
        file: the wheel's file name, for messages.
        path: the wheel's path on this host.
        descriptor: of the open file.

    Returns:
        All files, without folders, in the order of the zip directory.

    Raises:
        BuildError: it is not a zip file that every reader unpacks in the same, safe way.

    """
    infos, directory = listed(file, path, descriptor)
    members: dict[str, Member] = {}
    spans: list[_Span] = []
    for info in infos:
        name = info.orig_filename.removesuffix("/")
        if problem := path_problem(name) or _entry_problem(info):
            raise refuse(file, info.orig_filename, problem)
        try:
            start, follows = _data_start(file, info, descriptor)
        except (OSError, OverflowError):
            raise refuse(file, info.orig_filename, "has its data outside of the file") from None
        spans.append(_Span(info=info, end=start + info.compress_size, follows=follows))
        if name in members:
            raise refuse(file, name, "occurs twice")
        members[name] = Member(
            wheel=file,
            file=path,
            name=name,
            stored=info.compress_type == zipfile.ZIP_STORED,
            start=start,
            packed=info.compress_size,
            size=info.file_size,
            crc=info.CRC,
            # pip's rule: a regular file with any x bit.
            executable=stat.S_ISREG(info.external_attr >> 16) and bool(info.external_attr >> 16 & 0o111),
        )
    _check_gaps(file, spans, directory, descriptor)
    folders = {info.orig_filename.removesuffix("/") for info in infos if info.orig_filename.endswith("/")}
    return tuple(member for name, member in members.items() if name not in folders)


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The end of a member's data; `follows` is whether a record of its sizes comes after the data."""

    info: zipfile.ZipInfo
    end: int
    follows: bool


def _check_gaps(file: str, spans: list[_Span], directory: int, descriptor: int) -> None:
    """Check that members fill the file up to its directory: other readers could find files in a gap."""
    ordered = sorted(spans, key=lambda span: (span.info.header_offset, span.end))
    begins = [*(span.info.header_offset for span in ordered), directory]
    if begins[0]:
        raise _ambiguous(file, f"has {begins[0]} bytes before its first file")
    for span, begin in zip(ordered, begins[1:], strict=True):
        name, gap = span.info.orig_filename, begin - span.end
        if gap < 0:
            raise refuse(file, name, "overlaps what follows it in the file")
        if span.follows:
            if os.pread(descriptor, min(gap, _FOLLOWING_MOST), span.end) not in _descriptors(span.info):
                raise refuse(file, name, "is not followed by its own size and CRC alone")
        elif gap:
            raise refuse(file, name, f"is followed by {gap} bytes that belong to no file")


def _descriptors(info: zipfile.ZipInfo) -> Iterator[bytes]:
    values = (info.CRC, info.compress_size, info.file_size)
    for layout in _FOLLOWING:
        with contextlib.suppress(struct.error):  # too large for four bytes
            yield layout.pack(*values)
            yield _FOLLOWING_MAGIC + layout.pack(*values)


@dataclass(frozen=True, kw_only=True)
class _End:
    """What the last record of a zip file says about its directory: number of files, and offset."""

    count: int
    start: int


def _end(file: str, descriptor: int) -> _End:
    """Read the last records of a zip file, and check that they can be read in one way only.

    The last record is APPNOTE 4.3.16; 4.3.14 and 4.3.15 come before it if a value does not fit there. They
    are accepted only at the very end. Elsewhere their signatures may be part of any other data, and readers
    differ in which occurrence they take.
    """
    size = os.fstat(descriptor).st_size
    last = size - _END.size
    tail = os.pread(descriptor, _END.size, max(last, 0))
    if len(tail) < _END.size or not tail.startswith(_END_MAGIC):
        raise zipfile.BadZipFile("its last bytes are not the end of a zip directory")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack(tail)
    stop = last
    locator = os.pread(descriptor, _LOCATOR.size, last - _LOCATOR.size) if last >= _LOCATOR.size else b""
    if locator.startswith(_LOCATOR_MAGIC):
        stop = last - _LOCATOR.size - _END64.size
        _, _, place, disks = _LOCATOR.unpack(locator)
        record = os.pread(descriptor, _END64.size, max(stop, 0))
        if place != stop or disks != 1 or not record.startswith(_END64_MAGIC):
            raise _ambiguous(file, "does not have its zip64 record where the locator says")
        short = (disk, first_disk, here, count, length, start)
        _, rest, _, _, disk, first_disk, here, count, length, start = _END64.unpack(record)
        long = (disk, first_disk, here, count, length, start)
        fits = all(one in {other, most} for one, other, most in zip(short, long, _MOST, strict=True))
        if rest != _END64.size - 12 or not fits:
            raise _ambiguous(file, "has two end records that disagree")
    if disk or first_disk or here != count or comment or start + length != stop:
        raise _ambiguous(file, "has a comment, several parts, or other bytes beside its directory")
    if length > _DIRECTORY_LIMIT:
        raise BuildError("has far too many files", where=file, hint=HINT)
    return _End(count=count, start=start)


def _ambiguous(file: str, reason: str) -> BuildError:
    return BuildError(f"{reason}: two readers may see different files", where=file, hint=HINT)


def _entry_problem(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_folder = info.orig_filename.endswith("/")
    packing = info.compress_type
    findings = (
        (stat.S_ISLNK(kind), "is a symbolic link; a wheel may hold only files"),
        (
            kind not in {0, stat.S_IFDIR if is_folder else stat.S_IFREG},
            "is a special file, or a folder only by its name or by its mode",
        ),
        (is_folder and info.file_size, "is a folder with content"),
        (info.flag_bits & _ENCRYPTED, "is encrypted"),
        (
            info.flag_bits & _PATCHED or packing not in _METHODS,
            f"is compressed by method {packing}, not deflate",
        ),
        (
            packing == zipfile.ZIP_STORED and info.compress_size != info.file_size,
            "is stored, but with two different sizes",
        ),
    )
    return next((text for wrong, text in findings if wrong), "")


def _data_start(file: str, info: zipfile.ZipInfo, descriptor: int) -> tuple[int, bool]:
    """Check a member's own header against the zip directory.

    Returns:
        The offset of its data, and whether a record of its sizes follows the data.

    """
    name = info.orig_filename
    raw = os.pread(descriptor, _LOCAL_HEADER.size, info.header_offset)
    if len(raw) < _LOCAL_HEADER.size or not raw.startswith(_LOCAL_MAGIC):
        raise refuse(file, name, "is not where the zip directory says")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack(raw)
    start = info.header_offset + _LOCAL_HEADER.size
    own_name = os.pread(descriptor, name_length, start)
    if own_name != name.encode("utf-8" if info.flag_bits & _UTF8 else "cp437"):
        raise refuse(file, name, f"has another name in its own header: `{printable(repr(own_name)[2:-1])}`")
    if (flags ^ info.flag_bits) & _UTF8 and not own_name.isascii():
        raise refuse(file, name, "has a name in UTF-8 in one of its headers only")
    extra = os.pread(descriptor, extra_length, start + name_length)
    if _UNICODE_PATH in {**_extra(extra), **_extra(info.extra)}:
        raise refuse(file, name, "has another name in an extra field (Unicode Path)")
    if method != info.compress_type or (flags ^ info.flag_bits) & _ENCRYPTED:
        raise refuse(file, name, "is compressed in another way by its own header")
    if not flags & _SIZES_FOLLOW:
        # If a size does not fit, both sizes are in an extra field (APPNOTE 4.5.3).
        long = _extra(extra).get(_ZIP64_EXTRA, b"")
        if _ZIP64 in {packed, size} and len(long) == _ZIP64_SIZES.size:
            size, packed = _ZIP64_SIZES.unpack(long)
        if (crc, packed, size) != (info.CRC, info.compress_size, info.file_size):
            raise refuse(file, name, "has another size or CRC in its own header")
    return start + int(name_length) + int(extra_length), bool(flags & _SIZES_FOLLOW)


def _extra(data: bytes) -> dict[int, bytes]:
    """Read the extra fields of a header by their kind (APPNOTE 4.5); what is left at the end is padding."""
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        kind, length = struct.unpack_from("<HH", data, at)
        fields[kind] = data[at + 4 : at + 4 + length]
        at += 4 + length
    return fields
