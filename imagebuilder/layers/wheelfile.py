"""A wheel as a file: where each member's compressed bytes stand, and what must hold before they are used.

The zip directory at the end says what a wheel holds; each member repeats it in a header of its own. Unpackers
differ in whom they believe, so a wheel in which the two disagree, or members overlap, is refused, and so is
whatever an unpacker could be made to write outside of its folder. Formats: PKWARE's APPNOTE 6.3.10, and the
binary distribution format of the Python packaging specifications.
"""

from __future__ import annotations

import csv
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.errors import BuildError
from imagebuilder.layers.archive import path_problem
from imagebuilder.yamlfile import printable

CHUNK = 1 << 20

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MAGIC = b"PK\x06\x06"
_END64_LOCATOR = 20
# What zipfile raises for bytes that are no zip file.
NO_ZIP = (zipfile.BadZipFile, ValueError, EOFError, OSError, OverflowError, struct.error)
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_PATCHED = 0x0020
_SIZES_FOLLOW = 0x0008
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ZIP64 = 0xFFFFFFFF
# What is read into memory at once: RECORD, METADATA, scripts. The largest RECORD known is some megabytes.
_MEMORY_LIMIT = 64 << 20
# The zip directory is read into memory too, some twelve times its size. That of torch has one megabyte.
_DIRECTORY_LIMIT = 32 << 20
# All of a wheel, unpacked; the largest known has five gigabytes.
_UNPACKED_LIMIT = 1 << 37
_HASHES = frozenset({"sha256", "sha384", "sha512"})
_HASH = re.compile(r"([a-z0-9]+)=([A-Za-z0-9_-]+)=*")
_HINT = "the wheel is damaged, or was made by a broken tool; have it built again, or take another version"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a wheel.

    Attributes:
        wheel: the wheel's file name, for messages.
        name: path in the wheel.
        stored: whether the data is not compressed; otherwise it is a raw deflate stream.
        start, packed: offset in the wheel and length of the data, in bytes.
        size, crc: length in bytes and CRC-32 of the content.
        executable: whether the file mode that the zip records has an x.

    """

    wheel: str
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

        def text(name: str) -> str:
            member = by_name.get(f"{dist_info}/{name}")
            if member is None:
                raise refuse(file, f"{dist_info}/{name}", "is missing")
            return _text(descriptor, member)

        _check_version(file, f"{dist_info}/WHEEL", text("WHEEL"))
        text("METADATA")
        return WheelFile(
            file=file,
            path=path,
            distribution=dist_info.partition("-")[0],
            dist_info=dist_info,
            members=members,
            hashes=_hashes(by_name, f"{dist_info}/RECORD", text("RECORD")),
            entry_points=text("entry_points.txt") if f"{dist_info}/entry_points.txt" in by_name else "",
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


def content(descriptor: int, member: Member) -> bytes:
    """Unpack a small member into memory."""
    if member.size > _MEMORY_LIMIT:
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
                self._crc = zlib.crc32(piece, self._crc)
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


def _members(file: str, path: Path, descriptor: int) -> tuple[Member, ...]:
    try:
        if _directory_size(descriptor) > _DIRECTORY_LIMIT:
            raise BuildError("has far too many files", where=file, hint=_HINT)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            directory = archive.start_dir
    except (*NO_ZIP, NotImplementedError) as error:
        raise BuildError(f"is not a zip file: {printable(str(error))}", where=file, hint=_HINT) from None
    if sum(info.file_size for info in infos) > _UNPACKED_LIMIT:
        raise BuildError(f"unpacks to more than {_UNPACKED_LIMIT >> 30} GiB", where=file, hint=_HINT)
    members: dict[str, Member] = {}
    spans: list[tuple[int, int, str]] = []
    for info in infos:
        name = info.orig_filename.removesuffix("/")
        if problem := path_problem(name) or _entry_problem(info):
            raise refuse(file, info.orig_filename, problem)
        try:
            start = _data_start(file, info, descriptor)
        except (OSError, OverflowError):
            raise refuse(file, info.orig_filename, "is not in the file") from None
        spans.append((info.header_offset, start + info.compress_size, name))
        if name in members:
            raise refuse(file, name, "is there twice")
        members[name] = Member(
            wheel=file,
            name=name,
            stored=info.compress_type == zipfile.ZIP_STORED,
            start=start,
            packed=info.compress_size,
            size=info.file_size,
            crc=info.CRC,
            # The rule of pip: a regular file with any x.
            executable=stat.S_ISREG(info.external_attr >> 16) and bool(info.external_attr >> 16 & 0o111),
        )
    for (_, end, name), (begin, _, _) in pairwise([*sorted(spans), (directory, 0, "")]):
        if end > begin:
            raise refuse(file, name, "overlaps what follows it in the file")
    folders = {info.orig_filename.removesuffix("/") for info in infos if info.orig_filename.endswith("/")}
    return tuple(member for name, member in members.items() if name not in folders)


def _directory_size(descriptor: int) -> int:
    """Read how many bytes the zip directory takes, as the last records of the file say; 0 for what is no zip.

    APPNOTE 4.3.16; where the field is too small for it, 4.3.14: the record stands right before its locator.
    """
    size = os.fstat(descriptor).st_size
    start = max(size - _END.size - 0xFFFF, 0)
    tail = os.pread(descriptor, _END.size + 0xFFFF, start)
    at = tail.rfind(_END_MAGIC)
    if at < 0 or len(tail) - at < _END.size:
        return 0
    told = int(_END.unpack_from(tail, at)[5])
    place = start + at - _END64_LOCATOR - _END64.size
    if place < 0:
        return told
    record = os.pread(descriptor, _END64.size, place)
    return int(_END64.unpack(record)[8]) if record.startswith(_END64_MAGIC) else told


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


def _data_start(file: str, info: zipfile.ZipInfo, descriptor: int) -> int:
    """Hold a member's own header to the zip directory, and find where its data begins."""
    name = info.orig_filename
    raw = os.pread(descriptor, _LOCAL_HEADER.size, info.header_offset)
    if len(raw) < _LOCAL_HEADER.size or not raw.startswith(_LOCAL_MAGIC):
        raise refuse(file, name, "is not where the zip directory says")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack(raw)
    start = info.header_offset + _LOCAL_HEADER.size
    own_name = os.pread(descriptor, name_length, start)
    if own_name != name.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
        raise refuse(file, name, f"has another name in its own header: `{printable(repr(own_name)[2:-1])}`")
    if method != info.compress_type or (flags ^ info.flag_bits) & _ENCRYPTED:
        raise refuse(file, name, "is compressed in another way by its own header")
    if not flags & _SIZES_FOLLOW:
        told = (crc, packed, size)
        listed = (info.CRC, info.compress_size, info.file_size)
        if any(own not in {_ZIP64, other} for own, other in zip(told, listed, strict=True)):
            raise refuse(file, name, "has another size or CRC in its own header")
    return start + int(name_length) + int(extra_length)


def _dist_info(file: str, members: Mapping[str, Member]) -> str:
    folders = sorted({name.partition("/")[0] for name in members if ".dist-info/" in name})
    folders = [folder for folder in folders if folder.endswith(".dist-info")]
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


def _text(descriptor: int, member: Member) -> str:
    try:
        return content(descriptor, member).decode("utf-8")
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
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise members[name].refuse(f"is not CSV: {error}") from None
    for row in rows:
        member = members.get(row[0]) if row else None
        match = _HASH.fullmatch(row[1]) if len(row) > 1 else None
        if member is None or match is None or match[1] not in _HASHES:
            continue
        if len(row) > 2 and row[2] and row[2] != str(member.size):
            raise member.refuse(f"has {member.size} bytes, and {printable(row[2])} in RECORD")
        hashes[member.name] = (match[1], match[2])
    return MappingProxyType(hashes)
