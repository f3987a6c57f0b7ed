"""Layers with a table of contents, from which engines fetch single files: eStargz.

A gzip member begins at the content of every file. A table (JSON) at the end of the layer says where, with the
hash of each file; a footer of fixed size says where the table is; the layer's descriptor in the manifest has
the table's digest. So Podman, CRI-O and the stargz snapshotter fetch the files that they lack by HTTP range.
Other engines read an ordinary layer. Format: docs/estargz.md of the stargz snapshotter.

The table is a file of the tar, and so is the landmark, a mark of one byte. Both come after the end of the tar
(two blocks of zeros), where readers of tars stop: no engine unpacks them into the root, and the files of a
layer are those that its recipe gives. Readers of the table find it by the footer.

Whoever takes a layer from elsewhere reads the tar, and never believes the table: `problem` compares the two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import posixpath
import re
import struct
import tarfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from imagebuilder.core import documents, process, tarstream
from imagebuilder.core.progress import Advance
from imagebuilder.core.tarstream import TarEntry
from imagebuilder.layers import archive
from imagebuilder.store import LayerRecord, Store

_LANDMARK = ".no.prefetch.landmark"  # no file is to be fetched before the others
_MARK = b"\x0f" + bytes(511)
_TABLE = "stargz.index.json"
_KINDS = {
    tarfile.DIRTYPE: "dir",
    tarfile.REGTYPE: "reg",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}
# How Python writes bytes of a path that are not UTF-8.
_UNKNOWN = re.compile("[\ud800-\udfff]")
_FOOTER_SIZE = 51
_LATEST = 253402300799  # the last second of the year 9999
# A part of the format of every layer: another size gives other digests.
_CHUNK = 1 << 20
# The bytes that one job of the pool compresses, if there are many small files.
_JOB = 1 << 20


class Table:
    """The table of contents of a layer that is being written; its entries are in the order of the tar."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        # The root of the image is always in the table: Podman 4 gives a root that is not the mode 0700.
        self._root: dict[str, Any] = {}
        self.add(TarEntry(path="", kind=tarfile.DIRTYPE))

    def add(self, entry: TarEntry, sha256: str = "") -> dict[str, Any]:
        """Add an entry of the tar.

        Args:
            entry: its path may begin with `./`.
            sha256: of a file's content, in hex.

        Returns:
            The row. If the file has content, the caller sets `offset`: where its gzip member begins.

        """
        path = posixpath.normpath(f"/{entry.path}").lstrip("/")
        time = datetime.fromtimestamp(min(max(entry.mtime, 0), _LATEST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kind = "reg" if entry.is_file else _KINDS.get(entry.kind, "reg")
        name = f"{path or '.'}/" if entry.is_folder else path
        row: dict[str, Any] = {"name": name, "type": kind}
        row |= {"modtime": time, "mode": entry.mode, "uid": entry.uid, "gid": entry.gid}
        # Podman before 4.6 reads time and owner by these names alone. Without the time, Python would compile
        # every module again at each start; without the owner, all files would be root's.
        row |= {"ModTime": time, "UID": entry.uid, "GID": entry.gid}
        if entry.is_symlink or entry.is_hardlink:
            row["linkName"] = entry.link if entry.is_symlink else posixpath.normpath(f"/{entry.link}")[1:]
        if any(entry.device):
            row["devMajor"], row["devMinor"] = entry.device
        if entry.capability:
            value = base64.b64encode(entry.capability).decode()
            row["xattrs"] = {"security.capability": value}
        if entry.is_file and entry.size:
            row |= {"size": entry.size, "offset": 0}
            say_hash(row, sha256)
        if path:
            self._rows.append(row)
        else:
            self._root = row
        return row

    def is_exact(self) -> bool:
        """Return whether every path is in the table once, as it is in the tar: JSON holds only Unicode."""
        texts = [row["name"] for row in self._rows]
        links = [row.get("linkName", "") for row in self._rows]
        known = not any(_UNKNOWN.search(text) for text in (*texts, *links))
        return known and len({text.rstrip("/") for text in texts}) == len(texts)

    def json(self) -> bytes:
        """Return the table as the layer has it."""
        return json.dumps(
            {"version": 1, "entries": [self._root, *self._rows]}, separators=(",", ":")
        ).encode()


def say_hash(row: dict[str, Any], sha256: str) -> None:
    """Set the hash of a file, which is also that of its only chunk."""
    row["digest"] = row["chunkDigest"] = f"sha256:{sha256}"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a layer: bytes of the tar, the same packed with the footer, and the table's digest."""

    tar: bytes
    packed: bytes
    digest: str  # "" if engines must not use the table


def ending(plain: bytes, table: Table, position: int) -> Ending:
    """Make the end of a layer.

    Args:
        plain: bytes of the tar after the last file's content.
        table: of all entries.
        position: the size of the blob so far.

    """
    plain += archive.TAR_END + archive.regular(_LANDMARK, 0o444, 1)
    parts = [(plain, archive.packed_member(plain)), (_MARK, archive.packed_member(_MARK))]
    _add_landmark(table, position + len(parts[0][1]))
    text = table.json()
    data = _file(text)
    place = position + sum(len(packed) for _, packed in parts)
    parts += [(data, archive.packed_member(data)), (b"", _footer(place))]
    return Ending(
        tar=b"".join(tar for tar, _ in parts),
        packed=b"".join(packed for _, packed in parts),
        digest=documents.digest_of(text) if table.is_exact() else "",
    )


def _add_landmark(table: Table, offset: int) -> None:
    row = table.add(
        TarEntry(path=_LANDMARK, kind=tarfile.REGTYPE, mode=0o444, size=1),
        hashlib.sha256(_MARK[:1]).hexdigest(),
    )
    row["offset"] = offset


def _file(text: bytes) -> bytes:
    """Return the end of the tar: the table as a file."""
    return archive.regular(_TABLE, 0o444, len(text)) + text + archive.padding(len(text)) + archive.TAR_END


def _footer(place: int) -> bytes:
    """Return the empty gzip member whose extra field has the table's offset."""
    said = b"%016xSTARGZ" % place
    extra = struct.pack("<2sH", b"SG", len(said)) + said
    header = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff" + struct.pack("<H", len(extra))
    return header + extra + b"\x01\x00\x00\xff\xff" + bytes(8)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """Bytes for one gzip member, and the row of the file whose content begins there."""

    data: bytes
    row: dict[str, Any] | None = None


def compress_tar(stream: BinaryIO, store: Store, advance: Advance, *, table: bool = True) -> LayerRecord:
    """Compress an uncompressed tar into a layer of the store, on all cores.

    Args:
        stream: the tar; read to its end.
        store: the blob is written to it.
        advance: called with the bytes read.
        table: False for a layer without a table of contents: its small files are compressed together.

    Raises:
        StoreError: the blob cannot be written.

    """
    rows = Table() if table else None
    source = _Recorder(stream, advance)
    diff_id, unpacked = hashlib.sha256(), 0
    workers = min(process.cores(), 8)
    with store.writer() as writer, ThreadPoolExecutor(workers) as pool:
        jobs: deque[tuple[list[_Piece], Future[list[bytes]]]] = deque()

        def finish() -> None:
            pieces, packed = jobs.popleft()
            for piece, member in zip(pieces, packed.result(), strict=True):
                if piece.row is not None:
                    piece.row["offset"] = writer.size
                writer.write(member)

        for pieces in _batches(_files(source, rows) if rows else _chunks(source)):
            jobs.append((pieces, pool.submit(_packed, pieces)))
            for piece in pieces:
                diff_id.update(piece.data)
                unpacked += len(piece.data)
            if len(jobs) > 2 * workers:
                finish()
        while jobs:
            finish()
        end = ending(source.take().removesuffix(bytes(512)), rows, writer.size) if rows else None
        while source.read(_CHUNK):  # what follows the end of the tar
            source.take()
        if end:
            diff_id.update(end.tar)
            writer.write(end.packed)
        digest, size = writer.commit()
    return LayerRecord(
        digest=digest,
        diff_id=f"sha256:{diff_id.hexdigest()}",
        size=size,
        unpacked=unpacked + (len(end.tar) if end else 0),
        media_type=archive.MEDIA_TYPE,
        toc=end.digest if end else "",
    )


class _Recorder:
    """A stream that keeps what was read from it, until somebody takes that."""

    def __init__(self, stream: BinaryIO, advance: Advance) -> None:
        self._stream, self._advance = stream, advance
        self._kept: list[bytes] = []

    def read(self, size: int) -> bytes:
        """Read as many bytes as that, even if a pipe returns fewer at once; fewer only at the end."""
        begin, missing = len(self._kept), size
        while missing and (part := self._stream.read(missing)):
            self._kept.append(part)
            missing -= len(part)
        self._advance(size - missing)
        parts = self._kept[begin:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take(self) -> bytes:
        kept, self._kept = self._kept, []
        return kept[0] if len(kept) == 1 else b"".join(kept)


def _chunks(source: _Recorder) -> Iterator[_Piece]:
    while source.read(_CHUNK):
        yield _Piece(data=source.take())


def _files(source: _Recorder, rows: Table) -> Iterator[_Piece]:
    """Cut a tar before and within the contents of its files; the last headers stay in the source."""
    for entry, content in tarstream.entries(cast("BinaryIO", source)):
        row = rows.add(entry)
        if not entry.is_file or not entry.size:
            continue
        yield _Piece(data=source.take())
        digest, first = hashlib.sha256(), True
        while content.read(_CHUNK):
            data = source.take()
            digest.update(data)
            yield _Piece(data=data, row=row if first else None)
            first = False
        say_hash(row, digest.hexdigest())


def _batches(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Collect pieces for one job of the pool each."""
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.data)
        if size >= _JOB:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _packed(pieces: list[_Piece]) -> list[bytes]:
    return [archive.packed_member(piece.data) for piece in pieces]


def true_table(blob: Path) -> str:
    """Return the digest of a layer's table if it says what the tar has, and "" if not.

    The search for secrets and all comparisons read the tar. A table that said anything else would give other
    files to engines that fetch by it. So it must be the very table that we would write.

    Raises:
        OSError: the blob cannot be read.

    """
    table = Table()
    with blob.open("rb") as file:
        members = _Members(file)
        try:
            for entry, content in tarstream.entries(cast("BinaryIO", members)):
                row = table.add(entry)
                if entry.is_file and entry.size:
                    row["offset"] = members.begin()
                    digest = hashlib.sha256()
                    while data := content.read(_CHUNK):
                        digest.update(data)
                    say_hash(row, digest.hexdigest())
            # One block of zeros is already read.
            between = members.read(2 * len(_MARK))
            _add_landmark(table, members.begin())
            text = table.json()
            mark, place, last = members.read(len(_MARK)), members.begin(), members.read(len(_file(text)) + 1)
        except tarstream.errors():
            return ""
        file.seek(-min(_FOOTER_SIZE, file.tell()), os.SEEK_END)
        found = (between, mark, last, file.read())
    wanted = (bytes(512) + archive.regular(_LANDMARK, 0o444, 1), _MARK, _file(text), _footer(max(place, 0)))
    return documents.digest_of(text) if found == wanted and table.is_exact() else ""


class _Members:
    """The content of a gzip file, which says where its members begin."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed = b""
        self._position = 0  # in the file, of `_packed`
        self._inflate: Any = None
        self._member = -1  # where the member begins that was read last
        self._data = b""
        self._start = -1  # where a member begins whose content begins with `_data`

    def begin(self) -> int:
        """Return the offset of the member whose content comes next; -1 in the middle of a member."""
        if not self._data:
            self._fill()
        return self._start

    def read(self, size: int) -> bytes:
        """Read that many bytes, fewer only at the end."""
        parts = []
        while size and (self._data or self._fill()):
            part, self._data, self._start = self._data[:size], self._data[size:], -1
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _fill(self) -> bool:
        from isal import isal_zlib

        while self._packed or (packed := self._file.read(_CHUNK)) or self._inflate:
            self._packed = self._packed or packed
            if self._inflate is None:
                self._inflate = isal_zlib.decompressobj(31)
                self._member = self._start = self._position
            size, before = len(self._packed), self._packed
            data = self._inflate.decompress(self._packed, _CHUNK)
            self._packed = self._inflate.unused_data or self._inflate.unconsumed_tail
            self._position += size - len(self._packed)
            if self._inflate.eof:
                self._inflate = None
            elif not data and not before:
                raise EOFError("the last member is cut off")
            if data:
                self._data = data
                self._start, self._member = self._member, -1
                return True
        return False
