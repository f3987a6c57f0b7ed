"""The bytes of layers: tar headers, and gzip files of many members. Nothing here depends on clock or host.

A gzip file may be a sequence of members (RFC 1952, section 2.2), and readers of OCI layers take them as one
stream. So a layer can contain members copied from wheels (`layers.wheels.layer`), and members that several
threads compressed (`layers.stargz`).

Tar headers are POSIX ustar, with a pax header only if a path or size does not fit.
"""

from __future__ import annotations

import hashlib
import re
import struct
import tarfile
import zlib
from typing import BinaryIO

MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
TAR_END = bytes(1024)
# Magic, deflate, no flags, no time, no extra flags, system unknown: RFC 1952, section 2.3.
GZIP_HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF))

_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_BLOCK = 512
# A part of the format of every layer: another level gives other digests.
LEVEL = 6
_COMPONENT_LIMIT = 255
_PATH_LIMIT = 4095
_STORED_LIMIT = 0xFFFF
# Fields of a header, in bytes: "ustar Interchange Format" in POSIX's pax.
_CHECKSUM = slice(148, 156)
_DEVICE = slice(329, 345)
_OCTAL_SIZE_LIMIT = 8**11
_NAME_LIMIT = 100
_PREFIX_LIMIT = 155


def path_problem(path: str) -> str:
    """Return why a layer must not contain a path, as the end of a sentence; "" if it may.

    A path is relative to the root, with single slashes between its parts and no slash at its ends.
    """
    parts = path.split("/")
    sizes = [len(part.encode(errors="replace")) for part in parts]
    findings = (
        (path.startswith("/"), "is an absolute path"),
        ("\\" in path, "has a backslash in its path"),
        (_UNFIT.search(path), "has a control character or half a surrogate pair in its path"),
        (".." in parts, "leads out of its folder with `..`"),
        ("" in parts or "." in parts, "has an empty part or `.` in its path"),
        (any(part.startswith(".wh.") for part in parts), "would delete files: `.wh.` begins a whiteout"),
        (max(sizes) > _COMPONENT_LIMIT or sum(sizes) + len(sizes) > _PATH_LIMIT, "has too long a path"),
    )
    return next((text for wrong, text in findings if wrong), "")


def parents(path: str) -> tuple[str, ...]:
    """Return the folders above a path, the outermost first: `a`, `a/b` for `a/b/c`."""
    parts = path.split("/")[:-1]
    return tuple("/".join(parts[: count + 1]) for count in range(len(parts)))


def directory(path: str, mode: int, uid: int = 0) -> bytes:
    """Tar header of a folder; `path` is relative to the root, without a slash at its end."""
    return _member(f"{path}/", mode=mode, size=0, kind=b"5", target="", uid=uid)


def regular(path: str, mode: int, size: int, uid: int = 0) -> bytes:
    """Tar header of a file; its content follows, then `padding(size)`."""
    return _member(path, mode=mode, size=size, kind=b"0", target="", uid=uid)


def symlink(path: str, target: str, uid: int = 0) -> bytes:
    """Tar header of a symbolic link."""
    return _member(path, mode=0o777, size=0, kind=b"2", target=target, uid=uid)


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a file of this size."""
    return bytes(-size % _BLOCK)


def stored_blocks(data: bytes, *, last: bool) -> bytes:
    """Wrap data into stored (uncompressed) deflate blocks (RFC 1951, section 3.2.4).

    Args:
        data: any number of bytes.
        last: whether the deflate stream ends here.

    """
    parts: list[bytes] = []
    for start in range(0, max(len(data), 1), _STORED_LIMIT):
        piece = data[start : start + _STORED_LIMIT]
        final = last and start + _STORED_LIMIT >= len(data)
        parts += (struct.pack("<BHH", final, len(piece), len(piece) ^ 0xFFFF), piece)
    return b"".join(parts)


def gzip_trailer(crc: int, size: int) -> bytes:
    """Return the end of a gzip member: CRC-32 and size of its content, modulo 2^32."""
    return struct.pack("<II", crc, size & 0xFFFFFFFF)


def packed_member(data: bytes, level: int = LEVEL) -> bytes:
    """Return a gzip member that contains the data, compressed by libdeflate."""
    # Imported here, so that commands that compress nothing start faster.
    import deflate

    body = deflate.deflate_compress(data, level)
    return b"".join((GZIP_HEADER, body, gzip_trailer(zlib.crc32(data), len(data))))


def settle_headers(file: BinaryIO) -> None:
    """Rewrite the headers of a tar file so that they do not depend on the release of GNU tar.

    For entries that are not devices, tar 1.35 leaves the device numbers empty, and 1.34 and older wrote
    zeros. This writes the zeros, as most images have them.
    """
    with tarfile.open(fileobj=file, mode="r:") as tar:
        # Both releases leave the device numbers of pax headers empty.
        places = [member.offset_data - _BLOCK for member in tar]
    for place in places:
        file.seek(place)
        header = bytearray(file.read(_BLOCK))
        if header[_DEVICE] == bytes(16):
            header[_DEVICE] = b"0000000\0" * 2
            header[_CHECKSUM] = b" " * 8
            header[_CHECKSUM] = b"%06o\0 " % sum(header)
            file.seek(place)
            file.write(header)
    file.seek(0)


def _member(path: str, *, mode: int, size: int, kind: bytes, target: str, uid: int) -> bytes:
    raw, link = path.encode(), target.encode()
    records = b""
    split = _split(raw) if path.isascii() else None
    if split is None:
        records += _pax_record(b"path", raw)
        split = (b"", raw[:_NAME_LIMIT])
    if len(link) > _NAME_LIMIT or not target.isascii():
        records += _pax_record(b"linkpath", link)
    if size >= _OCTAL_SIZE_LIMIT:
        records += _pax_record(b"size", str(size).encode())
    small = size if size < _OCTAL_SIZE_LIMIT else 0
    header = _ustar(split, mode=mode, size=small, kind=kind, link=link, uid=uid)
    if not records:
        return header
    name = (b"", b"pax/" + hashlib.sha256(raw).hexdigest().encode())
    extension = _ustar(name, mode=0o644, size=len(records), kind=b"x", link=b"", uid=0)
    return extension + records + padding(len(records)) + header


def _ustar(name: tuple[bytes, bytes], *, mode: int, size: int, kind: bytes, link: bytes, uid: int) -> bytes:
    """Pack a header in the format of POSIX.1-1988: an owner of group 0 without names, time 0, no device."""
    plain = name[1].ljust(_NAME_LIMIT, b"\0")
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (plain, mode, uid, 0, size, 0)
    tail = b"%b%bustar\x0000%b%07o\0%07o\0%b" % (
        kind,
        link[:_NAME_LIMIT].ljust(_NAME_LIMIT, b"\0"),
        bytes(64),
        0,
        0,
        name[0].ljust(_PREFIX_LIMIT + 12, b"\0"),
    )
    # The checksum is computed with its own field as blanks.
    total = sum(head) + 8 * ord(" ") + sum(tail)
    return b"%b%06o\0 %b" % (head, total, tail)


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """Split a path into ustar's prefix and name; None if it does not fit."""
    if len(path) <= _NAME_LIMIT:
        return b"", path
    slash = path.rfind(b"/", 0, min(_PREFIX_LIMIT + 1, len(path) - 1))
    # The name must not become empty; a folder's slash is a part of its name.
    if slash <= 0 or len(path) - slash - 1 > _NAME_LIMIT:
        return None
    return path[:slash], path[slash + 1 :]


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Write `length key=value`, where the length counts its own digits."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return b"%d%b" % (length, rest)
