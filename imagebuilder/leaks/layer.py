"""One layer, streamed: unpacked a few megabytes at a time, every file searched, deleted ones included.

Neither the layer nor a file is ever in memory as a whole. A window slides over the unpacked tar; what the
quick search finds in it is looked at in full once enough of what follows is there.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from imagebuilder import tarstream
from imagebuilder.errors import StoreError
from imagebuilder.leaks.host import Mark
from imagebuilder.leaks.rules import Finding, Format
from imagebuilder.leaks.text import AHEAD, BEHIND, Search

# Larger pieces are new pages each time, which the kernel has to clear: that takes longer than the search.
_CHUNK = 1 << 18
_BLOCK = 512
# Files up to this size are held in memory where a rule looks at them as a whole, or where they are packed.
_WHOLE = 1 << 20
_UNPACKED = 1 << 24
# More than a person reads; a hostile layer could hold any number.
_MOST = 1000
_GZIP = b"\x1f\x8b"
_PAX = re.compile(rb"\d+ (path|size)=([^\n]*)\n")


@dataclass(frozen=True, kw_only=True)
class LayerScan:
    """What was read of a layer, files and unpacked bytes, and what was found."""

    files: int
    bytes: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One file: its path, and where its content begins and ends in the tar."""

    path: str
    start: int
    end: int


def scan_layer(path: Path, search: Search) -> LayerScan:
    """Search one layer.

    Args:
        path: its blob: a tar, plain, gzip or zstd.
        search: what to look for.

    Raises:
        StoreError: the blob cannot be read as that.

    """
    try:
        with tarstream.open_layer(path) as stream:
            return _Layer(search).read(stream)
    except tarstream.errors() as error:
        raise StoreError(
            f"a layer cannot be searched for secrets: {error}", where=str(path), hint="build the image again"
        ) from error


class _Layer:
    """The window over one layer, and what was found so far."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._window = b""
        self._base = 0
        self._searched = 0
        self._header = 0
        self._long: dict[bytes, bytes] = {}
        self._entries: list[_Entry] = []
        self._wanted: list[tuple[_Entry, tuple[Format, ...]]] = []
        self._files = 0
        self._found: dict[Finding, None] = {}

    def read(self, stream: BinaryIO) -> LayerScan:
        while chunk := stream.read(_CHUNK):
            self._window += chunk
            self._step(self._end - AHEAD)
        self._step(self._end)
        return LayerScan(files=self._files, bytes=self._end, findings=tuple(self._found))

    @property
    def _end(self) -> int:
        return self._base + len(self._window)

    def _step(self, limit: int) -> None:
        """Search up to a position of the tar, and drop what is no longer needed."""
        self._parse()
        self._search_up_to(limit)
        self._wanted = [item for item in self._wanted if not self._take(*item)]
        keep = min([limit - BEHIND, self._header, *(entry.start for entry, _ in self._wanted)])
        if keep > self._base:
            self._window = self._window[keep - self._base :]
            self._base = keep
        self._entries = [entry for entry in self._entries if entry.end > self._base]
        self._searched = max(limit, self._searched)

    def _parse(self) -> None:
        """Read the headers that are in the window: POSIX ustar with pax and GNU's long names (tar(5))."""
        while self._header + _BLOCK <= self._end:
            at = self._header - self._base
            block = self._window[at : at + _BLOCK]
            if not block.strip(b"\0"):
                self._header += _BLOCK
                continue
            kind, size = block[156:157], _number(block[124:136])
            start = self._header + _BLOCK
            if kind in b"xgLK":
                if size > _WHOLE:
                    raise ValueError("a header of the tar is too long")
                if start + size > self._end:
                    return
                self._extend(kind, self._window[start - self._base :][:size])
            else:
                size = int(self._long.pop(b"size", b"") or size)
                if size < 0:
                    # It would lead back to where we come from, for ever.
                    raise ValueError("a file of the tar has a negative size")
                self._enter(block, kind, start, size if kind in b"\x000" + b"7" else 0)
                size = size if kind in b"\x0007" else 0
            self._header = start + -(-size // _BLOCK) * _BLOCK

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            self._long[b"path"] = data.rstrip(b"\0")
        elif kind == b"x":
            self._long.update(dict(_PAX.findall(data)))

    def _enter(self, block: bytes, kind: bytes, start: int, size: int) -> None:
        prefix, name = block[345:500].split(b"\0")[0], block[:100].split(b"\0")[0]
        short = prefix + b"/" + name if prefix and block[257:262] == b"ustar" else name
        path = self._long.pop(b"path", short).decode("utf-8", "replace")
        for mark in self._search.paths:
            if mark.data in b"/" + path.encode().removeprefix(b"./"):
                self._note(self._search.marked(mark, path, 0))
        entry = _Entry(path=path, start=start, end=start + size)
        self._entries.append(entry)
        if kind in b"\x0007":
            self._files += 1
            wants = self._search.wants(path)
            if 0 < size <= _WHOLE and (wants or path.endswith(".gz")):
                self._wanted.append((entry, wants))

    def _search_up_to(self, limit: int) -> None:
        for hit in self._search.hits(self._window):
            position = self._base + hit.position
            if not self._searched <= position < limit or len(self._found) >= _MOST:
                continue
            entry, inside = self._entry_at(position)
            if entry is None or not (inside or isinstance(hit.what, Mark)):
                continue
            low = max(entry.start - self._base, 0) if inside else hit.position
            high = min(entry.end - self._base, len(self._window)) if inside else len(self._window)
            self._note(self._search.confirm(hit, self._window, low, high, entry.path))

    def _entry_at(self, position: int) -> tuple[_Entry | None, bool]:
        """Find the file whose content is at a position; in a header, whose link it may be, and False."""
        index = bisect_right(self._entries, position, key=lambda entry: entry.start)
        if index and position < self._entries[index - 1].end:
            return self._entries[index - 1], True
        return (self._entries[index], False) if index < len(self._entries) else (None, False)

    def _take(self, entry: _Entry, wants: tuple[Format, ...]) -> bool:
        """Search a file as a whole, once all of it is in the window. True when that is done."""
        if entry.end > self._end:
            return False
        data = self._window[entry.start - self._base : entry.end - self._base]
        for item in wants:
            for finding in self._search.whole(item, data, entry.path):
                self._note(finding)
        if data.startswith(_GZIP):
            for finding in self._search.text(_unpacked(data), entry.path):
                self._note(finding)
        return True

    def _note(self, finding: Finding | None) -> None:
        if finding and len(self._found) < _MOST:
            self._found[finding] = None


def _number(field: bytes) -> int:
    """Read a size: octal, or in base 256 where the first bit is set (GNU)."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:])
    size = int(field.strip(b" \0") or b"0", 8)
    if size < 0:
        raise ValueError("a header of the tar has a negative size")
    return size


def _unpacked(data: bytes) -> bytes:
    """Unpack a small gzip file inside the layer, up to a limit; nothing where it is not one after all."""
    try:
        return zlib.decompressobj(31).decompress(data, _UNPACKED)
    except zlib.error:
        return b""
