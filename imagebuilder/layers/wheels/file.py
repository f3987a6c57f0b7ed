"""A wheel as a file: where each member's compressed bytes stand, and what must hold before they are used.

The zip directory at the end says what a wheel holds; each member repeats it in a header of its own. Unpackers
differ in whom they believe, so a wheel in which the two disagree, or members overlap, is refused, and so is
whatever an unpacker could be made to write outside of its folder. Formats: PKWARE's APPNOTE 6.3.10, and the
binary distribution format of the Python packaging specifications.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

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
# What stands in the short record where only the long one has room.
_MOST = (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
# A member whose sizes follow it (APPNOTE 4.3.9): with a signature or without, in 4 or 8 bytes each.
_FOLLOWING = (struct.Struct("<III"), struct.Struct("<IQQ"))
_FOLLOWING_MAGIC = b"PK\x07\x08"
_FOLLOWING_MOST = 25
# The name of a member once more, in UTF-8 (APPNOTE 4.6.9): readers differ in which one they take.
_UNICODE_PATH = 0x7075
# What zipfile raises for bytes that are no zip file.
NO_ZIP = (zipfile.BadZipFile, ValueError, EOFError, OSError, OverflowError, struct.error)
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_PATCHED = 0x0020
_UTF8 = 0x0800
_SIZES_FOLLOW = 0x0008
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ZIP64 = 0xFFFFFFFF
_ZIP64_EXTRA = 1
_ZIP64_SIZES = struct.Struct("<QQ")
# What is read into memory at once: RECORD, METADATA, scripts. The largest RECORD known is some megabytes.
_MEMORY_LIMIT = 16 << 20
# Of WHEEL and entry_points.txt, which have a line a fact; a parser takes many times that.
TEXT_LIMIT = 1 << 20
# The zip directory is read into memory too, some twelve times its size. That of torch has one megabyte.
_DIRECTORY_LIMIT = 32 << 20
# All of a wheel, unpacked; the largest known has five gigabytes.
_UNPACKED_LIMIT = 1 << 35
_HASHES = frozenset({"sha256", "sha384", "sha512"})
_HASH = re.compile(r"([a-z0-9]+)=([A-Za-z0-9_-]+)=*")
_HINT = "the wheel is damaged, or was made by a broken tool; have it built again, or take another version"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a wheel.

    Attributes:
        wheel: the wheel's file name, for messages.
        file: where the wheel lies.
        name: path in the wheel.
        stored: whether the data is not compressed; otherwise it is a raw deflate stream.
        start, packed: offset in the wheel and length of the data, in bytes.
        size, crc: length in bytes and CRC-32 of the content.
        executable: whether the file mode that the zip records has an x.

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
        """Make the error for this member; `reason` ends the sentence that its name begins."""
        return refuse(self.wheel, self.name, reason)


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A wheel, read and checked as far as that needs no unpacking.

    Attributes:
        file: the wheel's file name.
        path: where it lies.
        distribution: the name that its metadata folder begins with.
        dist_info: that folder's name, as in `numpy-2.3.1.dist-info`.
        members: all files, in the order of the zip directory.
        hashes: path and content hash as its RECORD has them (`sha256`, `dwVz...`); weak ones are left out.
        entry_points: the text of entry_points.txt, empty where there is none.

    """

    file: str
    path: Path
    distribution: str
    dist_info: str
    members: tuple[Member, ...]
    hashes: Mapping[str, tuple[str, str]]
    entry_points: str


def read_wheel(file: str, path: Path) -> WheelFile:
    """Read a wheel's directory and metadata.

    Args:
        file: the wheel's file name, which says its distribution and version.
        path: where its bytes are; the name of that file does not matter.

    Raises:
        BuildError: it is not a wheel that could be unpacked safely; names the wheel and the member.

    """
    with opened(file, path) as descriptor:
        members = _members(file, path, descriptor)
        by_name = {member.name: member for member in members}
        dist_info = _dist_info(file, by_name)

        def text(name: str, limit: int = _MEMORY_LIMIT) -> str:
            member = by_name.get(f"{dist_info}/{name}")
            if member is None:
                raise refuse(file, f"{dist_info}/{name}", "is missing")
            return _text(descriptor, member, limit)

        _check_version(file, f"{dist_info}/WHEEL", text("WHEEL", TEXT_LIMIT))
        _check_identity(file, dist_info, text("METADATA"))
        entry_points = f"{dist_info}/entry_points.txt" in by_name
        return WheelFile(
            file=file,
            path=path,
            distribution=dist_info.partition("-")[0],
            dist_info=dist_info,
            members=members,
            hashes=_hashes(by_name, f"{dist_info}/RECORD", text("RECORD")),
            entry_points=text("entry_points.txt", TEXT_LIMIT) if entry_points else "",
        )


@contextmanager
def opened(file: str, path: Path) -> Iterator[int]:
    """Open a wheel for `os.pread`, which several threads may do at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BuildError(
            f"cannot be read: {error.strerror}", where=file, hint="build again: what is absent is fetched"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def packed_chunks(descriptor: int, member: Member) -> Iterator[bytes]:
    """Read a member's data as it stands in the wheel, a megabyte at a time."""
    position, end = member.start, member.start + member.packed
    while position < end:
        wanted = min(CHUNK, end - position)
        chunk = os.pread(descriptor, wanted, position)
        if len(chunk) != wanted:
            raise member.refuse("is cut off: the wheel ends in the middle of it")
        yield chunk
        position += len(chunk)


def content(descriptor: int, member: Member, limit: int = _MEMORY_LIMIT) -> bytes:
    """Unpack a small member into memory."""
    if member.size > limit:
        raise member.refuse(f"is too large: {member.size} bytes")
    unpacking = Unpacking(member)
    parts = [part for chunk in packed_chunks(descriptor, member) for part in unpacking.feed(chunk)]
    unpacking.finish()
    return b"".join(parts)


class Unpacking:
    """Unpacks one member piece by piece, and holds it to what the zip directory says."""

    def __init__(self, member: Member) -> None:
        # Imported here: only what unpacks needs it, and commands that do not should start fast.
        from isal import isal_zlib

        self._member = member
        self._error: Any = isal_zlib.error
        self._checksum = isal_zlib.crc32
        self._inflate = None if member.stored else isal_zlib.decompressobj(-15)
        self._size = 0
        self._crc = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Unpack the next piece of the data, at most 4 MiB at a time, whatever it expands to."""
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
                    raise self._member.refuse(f"unpacks to more than the {self._member.size} bytes announced")
                self._crc = self._checksum(piece, self._crc)
                yield piece

    def finish(self) -> None:
        """Check that all has come, and that it is what was announced."""
        if self._inflate is not None and not self._inflate.eof:
            raise self._member.refuse("is cut off: its compressed data does not end")
        if self._size != self._member.size:
            raise self._member.refuse(f"unpacks to {self._size} bytes, not the {self._member.size} announced")
        if self._crc != self._member.crc:
            raise self._member.refuse("has another CRC than the zip directory says")


def refuse(wheel: str, name: str, reason: str) -> BuildError:
    """Make the error for one path of a wheel; `reason` ends the sentence that the path begins."""
    return BuildError(f"`{printable(name)}` {reason}", where=wheel, hint=_HINT)


def listed(file: str, path: Path, descriptor: int) -> tuple[list[zipfile.ZipInfo], int]:
    """Read the zip directory of a wheel, of a size that is bounded before.

    Returns:
        What it lists, and where in the file it begins.

    Raises:
        BuildError: it is not a zip file, or one that readers understand differently.

    """
    try:
        end = _end(file, descriptor)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            start = archive.start_dir
    except (*NO_ZIP, NotImplementedError) as error:
        raise BuildError(f"is not a zip file: {printable(str(error))}", where=file, hint=_HINT) from None
    if (len(infos), start) != (end.count, end.start):
        raise _ambiguous(file, f"lists {len(infos)} files at {start}, not {end.count} at {end.start}")
    if sum(info.file_size for info in infos) > _UNPACKED_LIMIT:
        raise BuildError(f"unpacks to more than {_UNPACKED_LIMIT >> 30} GiB", where=file, hint=_HINT)
    return infos, start


def _members(file: str, path: Path, descriptor: int) -> tuple[Member, ...]:
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
            raise refuse(file, info.orig_filename, "is not in the file") from None
        spans.append(_Span(info=info, end=start + info.compress_size, follows=follows))
        if name in members:
            raise refuse(file, name, "is there twice")
        members[name] = Member(
            wheel=file,
            file=path,
            name=name,
            stored=info.compress_type == zipfile.ZIP_STORED,
            start=start,
            packed=info.compress_size,
            size=info.file_size,
            crc=info.CRC,
            # The rule of pip: a regular file with any x.
            executable=stat.S_ISREG(info.external_attr >> 16) and bool(info.external_attr >> 16 & 0o111),
        )
    _check_gaps(file, spans, directory, descriptor)
    folders = {info.orig_filename.removesuffix("/") for info in infos if info.orig_filename.endswith("/")}
    return tuple(member for name, member in members.items() if name not in folders)


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Where a member's data ends; `follows` tells whether its sizes come after it."""

    info: zipfile.ZipInfo
    end: int
    follows: bool


def _check_gaps(file: str, spans: list[_Span], directory: int, descriptor: int) -> None:
    """Make sure that members fill the file up to its directory: a gap is where other readers find files."""
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
    """What the last record of a zip says of its directory: number of files, and where it begins."""

    count: int
    start: int


def _end(file: str, descriptor: int) -> _End:
    """Read the last records of a zip, and make sure that they can be read in one way only.

    APPNOTE 4.3.16; where a field is too small for it, 4.3.14 and 4.3.15 before. They are looked for nowhere
    but at the very end: a signature further up may stand in any field, and readers differ in which they take.
    """
    size = os.fstat(descriptor).st_size
    last = size - _END.size
    tail = os.pread(descriptor, _END.size, max(last, 0))
    if len(tail) < _END.size or not tail.startswith(_END_MAGIC):
        raise zipfile.BadZipFile("it does not end with the record of its directory")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack(tail)
    stop = last
    locator = os.pread(descriptor, _LOCATOR.size, last - _LOCATOR.size) if last >= _LOCATOR.size else b""
    if locator.startswith(_LOCATOR_MAGIC):
        stop = last - _LOCATOR.size - _END64.size
        _, _, place, disks = _LOCATOR.unpack(locator)
        record = os.pread(descriptor, _END64.size, max(stop, 0))
        if place != stop or disks != 1 or not record.startswith(_END64_MAGIC):
            raise _ambiguous(file, "does not have the record of its directory where its locator says")
        short = (disk, first_disk, here, count, length, start)
        _, rest, _, _, disk, first_disk, here, count, length, start = _END64.unpack(record)
        long = (disk, first_disk, here, count, length, start)
        fits = all(one in {other, most} for one, other, most in zip(short, long, _MOST, strict=True))
        if rest != _END64.size - 12 or not fits:
            raise _ambiguous(file, "has two records of its directory that disagree")
    if disk or first_disk or here != count or comment or start + length != stop:
        raise _ambiguous(file, "has bytes around its directory, a comment, or several parts")
    if length > _DIRECTORY_LIMIT:
        raise BuildError("has far too many files", where=file, hint=_HINT)
    return _End(count=count, start=start)


def _ambiguous(file: str, reason: str) -> BuildError:
    return BuildError(f"{reason}: two readers may see different files", where=file, hint=_HINT)


def _entry_problem(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_folder = info.orig_filename.endswith("/")
    packing = info.compress_type
    findings = (
        (stat.S_ISLNK(kind), "is a symbolic link; a wheel may hold only files"),
        (kind not in {0, stat.S_IFDIR if is_folder else stat.S_IFREG}, "is a special file, or half a folder"),
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
    """Hold a member's own header to the zip directory.

    Returns:
        Where its data begins, and whether its sizes follow it.

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
        # Sizes that do not fit are in an extra field, both of them (APPNOTE 4.5.3).
        long = _extra(extra).get(_ZIP64_EXTRA, b"")
        if _ZIP64 in {packed, size} and len(long) == _ZIP64_SIZES.size:
            size, packed = _ZIP64_SIZES.unpack(long)
        if (crc, packed, size) != (info.CRC, info.compress_size, info.file_size):
            raise refuse(file, name, "has another size or CRC in its own header")
    return start + int(name_length) + int(extra_length), bool(flags & _SIZES_FOLLOW)


def _extra(data: bytes) -> dict[int, bytes]:
    """Read the extra fields of a header by their kind (APPNOTE 4.5); the rest at the end is padding."""
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        kind, length = struct.unpack_from("<HH", data, at)
        fields[kind] = data[at + 4 : at + 4 + length]
        at += 4 + length
    return fields


def _dist_info(file: str, members: Mapping[str, Member]) -> str:
    # importlib.metadata takes them in any case.
    tops = {name.partition("/")[0] for name in members if "/" in name}
    folders = sorted(top for top in tops if top.lower().endswith(".dist-info"))
    wanted = canonicalize_name(file.partition("-")[0])
    if not folders:
        raise BuildError("has no .dist-info folder", where=file, hint=_HINT)
    if len(folders) > 1:
        raise BuildError(
            f"has several .dist-info folders: {', '.join(map(printable, folders))}", where=file, hint=_HINT
        )
    if canonicalize_name(folders[0].partition("-")[0]) != wanted:
        raise refuse(file, folders[0], f"belongs to another distribution than {wanted}")
    return folders[0]


def _check_identity(file: str, dist_info: str, metadata: str) -> None:
    """Make sure that file name, metadata folder and METADATA name one package and one version."""
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise BuildError(
            f"is not called as a wheel: {printable(str(error))}", where=file, hint=_HINT
        ) from None
    headers = HeaderParser().parsestr(metadata)
    said = [headers.get_all(key, []) for key in ("Name", "Version")]
    if any(len(values) != 1 for values in said):
        raise refuse(file, f"{dist_info}/METADATA", "does not say one Name and one Version")
    folder = dist_info[: -len(".dist-info")].partition("-")
    for place, (own_name, own_version) in (
        (f"{dist_info}/METADATA", (str(said[0][0]), str(said[1][0]))),
        (dist_info, (folder[0], folder[2])),
    ):
        try:
            same = (canonicalize_name(own_name), Version(own_version)) == (name, version)
        except InvalidVersion:
            same = False
        if not same:
            own = printable(f"{own_name} {own_version}")
            raise refuse(file, place, f"is of {own}, and the file name says {name} {version}")


def _text(descriptor: int, member: Member, limit: int) -> str:
    try:
        return content(descriptor, member, limit).decode("utf-8")
    except UnicodeDecodeError:
        raise member.refuse("is not UTF-8") from None


def _check_version(file: str, name: str, text: str) -> None:
    """Refuse formats of the future; Root-Is-Purelib may say either, for a venv has one folder for both."""
    headers = HeaderParser().parsestr(text)
    version = str(headers.get("Wheel-Version", "")).strip()
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", version):
        raise refuse(file, name, "does not say its Wheel-Version")
    if int(version.partition(".")[0]) > 1:
        raise BuildError(
            f"is of wheel format {version}; known is 1.x", where=file, hint="upgrade imagebuilder"
        )
    if str(headers.get("Root-Is-Purelib", "")).strip().lower() not in {"true", "false"}:
        raise refuse(file, name, "does not say its Root-Is-Purelib")


def _hashes(members: Mapping[str, Member], name: str, text: str) -> Mapping[str, tuple[str, str]]:
    hashes: dict[str, tuple[str, str]] = {}
    try:
        for row in csv.reader(io.StringIO(text)):
            member = members.get(row[0]) if row else None
            match = _HASH.fullmatch(row[1]) if len(row) > 1 else None
            if member is None or match is None or match[1] not in _HASHES:
                continue
            if len(row) > 2 and row[2] and row[2] != str(member.size):
                raise member.refuse(f"has {member.size} bytes, and {printable(row[2])} in RECORD")
            if hashes.setdefault(member.name, (match[1], match[2])) != (match[1], match[2]):
                raise member.refuse("has two hashes in RECORD")
    except csv.Error as error:
        raise members[name].refuse(f"is not CSV: {error}") from None
    return MappingProxyType(hashes)
