"""Splices one layer: copies compressed bytes into the blob, and checks what they unpack to.

The caller's thread copies compressed bytes into the blob. A second thread unpacks them. A third hashes the
result: the whole tar for the diffID, and each file, whose hash must be that in the wheel's RECORD. Every
layer is checked in this way, because bytes after the end of a stream could give an unpacker other files than
the wheel has. The threads pass on batches of about a megabyte, because wheels have thousands of tiny files.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from imagebuilder.core.progress import Advance
from imagebuilder.core.tarstream import TarEntry
from imagebuilder.layers import archive, stargz
from imagebuilder.layers.wheels.members import CHUNK, Member, Unpacking, packed_chunks
from imagebuilder.layers.wheels.placement import Placed, encoded
from imagebuilder.store import BlobWriter

# The number of batches that may wait between two threads. Each has at most 5 MiB, so this bounds the memory.
_DEPTH = 8

# A part of the format: headers have little content, so a fast level is nearly as good as a slow one.
_HEADERS_LEVEL = 1

Digest = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Spliced:
    """A finished layer: diffID, size of the tar in bytes, and the digest of its table of contents."""

    diff_id: str
    unpacked: int
    toc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A member whose compressed bytes are in the blob as they are in the wheel, from this offset on."""

    member: Member
    offset: int


class Splice:
    """Writes the blob of one layer; a context manager that ends its threads.

    Attributes:
        copies: the members that the blob has as the wheels have them.

    """

    def __init__(self, writer: BlobWriter, advance: Advance) -> None:
        """Begin a layer.

        Args:
            writer: the blob is written to it.
            advance: called with the bytes of wheels copied, from the caller's thread.

        """
        self._writer = writer
        self._advance = advance
        self._plain = bytearray()
        self._out = bytearray()
        self._copied = 0
        self._position = 0
        self._table = stargz.Table()
        self._proof = _Proof()
        self.copies: list[Copy] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._proof.close()

    def folder(self, path: str, mode: int) -> None:
        """Add a folder."""
        self._plain += archive.directory(path, mode)
        self._table.add(TarEntry(path=path, kind=tarfile.DIRTYPE, mode=mode))

    def file(self, item: Placed, sha256: str, descriptor: int) -> None:
        """Add a file: bytes made here, or a member of a wheel with its compressed bytes unchanged.

        Args:
            item: the file.
            sha256: of its content, in hex.
            descriptor: the wheel, open for reading.

        """
        self._plain += archive.regular(item.path, item.mode, item.size)
        row = self._table.add(
            TarEntry(path=item.path, kind=tarfile.REGTYPE, mode=item.mode, size=item.size), sha256
        )
        # An empty file has no content to begin a member at, but its stream is still to be checked.
        if item.size or isinstance(item.source, Member):
            self._end_plain()
        if item.size:
            row["offset"] = self._position
        if isinstance(item.source, Member):
            self._member(item.source, item.digest, descriptor)
        else:
            self._plain += item.source
            self._end_plain(archive.LEVEL)
        self._plain += archive.padding(item.size)

    def finish(self) -> Spliced:
        """Write the rest, and wait until everything is checked."""
        end = stargz.ending(bytes(self._plain), self._table, self._position)
        self._emit(end.packed)
        self._proof.add(_Run(data=end.tar))
        self._flush()
        diff_id, size = self._proof.finish()
        return Spliced(diff_id=diff_id, unpacked=size, toc=end.digest)

    def _member(self, member: Member, digest: Digest, descriptor: int) -> None:
        remaining = member.packed
        self._emit(archive.GZIP_HEADER)
        if not member.stored:
            self.copies.append(Copy(member=member, offset=self._position))
        for chunk in packed_chunks(descriptor, member):
            remaining -= len(chunk)
            self._copied += len(chunk)
            self._emit(archive.stored_blocks(chunk, last=not remaining) if member.stored else chunk)
            self._proof.add(_Run(data=chunk, member=member, digest=digest, last=not remaining))
        if not member.packed:
            self._emit(archive.stored_blocks(b"", last=True))
            self._proof.add(_Run(data=b"", member=member, digest=digest, last=True))
        self._emit(archive.gzip_trailer(member.crc, member.size))

    def _end_plain(self, level: int = _HEADERS_LEVEL) -> None:
        """Write the bytes collected so far as one gzip member."""
        if self._plain:
            data, self._plain = bytes(self._plain), bytearray()
            self._emit(archive.packed_member(data, level))
            self._proof.add(_Run(data=data))

    def _emit(self, data: bytes) -> None:
        self._out += data
        self._position += len(data)
        if len(self._out) >= CHUNK:
            self._flush()

    def _flush(self) -> None:
        data, self._out = self._out, bytearray()
        copied, self._copied = self._copied, 0
        self._writer.write(data)
        self._advance(copied)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """Consecutive bytes of the tar: its own, or a member's; `last` is whether the member ends here."""

    data: bytes
    member: Member | None = None
    digest: Digest = ("", "")
    last: bool = True


class _Batch:
    """Collects runs until there are enough to pass to another thread."""

    def __init__(self, deliver: Callable[[list[_Run]], None]) -> None:
        self._deliver = deliver
        self._runs: list[_Run] = []
        self._size = 0

    def add(self, run: _Run) -> None:
        self._runs.append(run)
        self._size += len(run.data)
        if self._size >= CHUNK:
            self.flush()

    def flush(self) -> None:
        runs, self._runs, self._size = self._runs, [], 0
        self._deliver(runs)


class _Lane:
    """One thread that does its jobs in order; adding a job waits while too many are open."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._open: deque[Future[None]] = deque()

    def put(self, job: Callable[[], None]) -> None:
        """Add a job; raises the error of an earlier job."""
        self._open.append(self._pool.submit(job))
        while len(self._open) > _DEPTH:
            self._open.popleft().result()

    def drain(self) -> None:
        """Wait for all jobs; raises the error of the first one that failed."""
        while self._open:
            self._open.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Proof:
    """Computes the diffID and checks every member, in two threads.

    `_unpack` and its fields belong to the first thread, `_hash` and its fields to the second.
    """

    def __init__(self) -> None:
        self._unpacking, self._hashing = _Lane(), _Lane()
        # Unpacking closes first, because an unpacking job may wait for a hashing job, never the reverse.
        self._lanes = ExitStack()
        self._lanes.callback(self._hashing.close)
        self._lanes.callback(self._unpacking.close)
        self._packed = _Batch(lambda runs: self._unpacking.put(partial(self._unpack, runs)))
        self._unpacked = _Batch(lambda runs: self._hashing.put(partial(self._hash, runs)))
        self._current: Unpacking | None = None
        self._tar = hashlib.sha256()
        self._tar_size = 0
        self._file: Any = None

    def add(self, run: _Run) -> None:
        self._packed.add(run)

    def finish(self) -> tuple[str, int]:
        self._packed.flush()
        self._unpacking.drain()
        self._unpacked.flush()
        self._hashing.drain()
        return f"sha256:{self._tar.hexdigest()}", self._tar_size

    def close(self) -> None:
        self._lanes.close()

    def _unpack(self, runs: list[_Run]) -> None:
        for run in runs:
            if run.member is None:
                self._unpacked.add(run)
                continue
            if self._current is None:
                self._current = Unpacking(run.member)
            for piece in self._current.feed(run.data):
                self._unpacked.add(_Run(data=piece, member=run.member, digest=run.digest, last=False))
            if run.last:
                self._current.finish()
                self._current = None
                self._unpacked.add(_Run(data=b"", member=run.member, digest=run.digest))

    def _hash(self, runs: list[_Run]) -> None:
        # One call for many small pieces, because a tar of tiny files is mostly headers of 512 bytes.
        joined = runs[0].data if len(runs) == 1 else b"".join(run.data for run in runs)
        self._tar.update(joined)
        self._tar_size += len(joined)
        for run in runs:
            if run.member is None:
                continue
            if self._file is None:
                self._file = hashlib.new(run.digest[0])
            self._file.update(run.data)
            if run.last:
                if encoded(self._file.digest()) != run.digest[1]:
                    raise run.member.refuse(f"has another {run.digest[0]} than in the wheel's RECORD")
                self._file = None
