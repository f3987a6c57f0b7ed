"""Search one layer as a stream: a few megabytes at a time, every file, also those that a later layer deletes.

Neither the layer nor a large file is ever completely in memory. A window slides over the unpacked tar. A
match of the quick search is examined once enough of the following bytes are in the window. Small files and
text are collected and searched again with all rules; archives are collected and opened, whatever their
names.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from imagebuilder.core import tarstream, yamlfile
from imagebuilder.errors import StoreError
from imagebuilder.publish.leaks import archives
from imagebuilder.publish.leaks.archives import ExceededError, Metered, Stream, UnpackBudget
from imagebuilder.publish.leaks.host import Mark
from imagebuilder.publish.leaks.rules import SecretFinding
from imagebuilder.publish.leaks.text import AHEAD, BEHIND, Hit, Search, TextPlace, without_repeats

# Larger pieces get new pages from the kernel each time; clearing them takes longer than the search.
_CHUNK = 1 << 18
_BLOCK = 512
# Files up to the one size, and text up to the other, are searched with all rules.
SMALL = 1 << 20
TEXT = 1 << 23
# Longer headers are refused.
_LONGEST_HEADER = 1 << 20
# Entries without content, whatever size their header says: links, devices, folders, pipes.
_EMPTY = b"123456"
# Archives up to this size are opened.
_PACKED = 1 << 30
# How much one file may unpack to: a multiple of its size, within a minimum and a maximum.
_RATIO, _LEAST, _GREATEST = 200, 1 << 26, 1 << 32
# More than a person reads; a hostile layer could hold any number.
_MOST = 1000
_PAX = re.compile(rb"\d+ (path|size)=([^\n]*)\n")


@dataclass(frozen=True, kw_only=True)
class Note:
    """A file that was not searched completely, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{yamlfile.printable(self.path)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class LayerScan:
    """The result for a layer: files and unpacked bytes read, findings, and files that could not be opened."""

    files: int
    bytes: int
    findings: tuple[SecretFinding, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A file: its path, and the start and end of its content in the tar."""

    path: str
    start: int
    end: int


_Span = tuple[int, int]


@dataclass(kw_only=True)
class _Results:
    """The findings so far, with the file's position in the layer; shared with searches of archives."""

    search: Search
    found: dict[SecretFinding, _Span] = field(default_factory=dict)
    notes: dict[Note, None] = field(default_factory=dict)

    def note(self, finding: SecretFinding | None, span: _Span) -> None:
        if finding and len(self.found) < _MOST:
            self.found.setdefault(finding, span)

    def remark(self, path: str, reason: str) -> None:
        if len(self.notes) < _MOST:
            self.notes[Note(path=path, reason=reason)] = None


def scan_layer(path: Path, search: Search) -> LayerScan:
    """Search one layer.

    Args:
        path: its blob: a tar, plain, gzip or zstd.
        search: what to look for.

    Raises:
        StoreError: the blob cannot be read as a layer.

    """
    results = _Results(search=search)
    try:
        with tarstream.open_layer(path) as stream:
            tar = _Tar(results)
            tar.read(stream)
        kept = without_repeats(tuple(results.found))
        digests = _digests(path, {results.found[finding] for finding in kept})
    except tarstream.errors() as error:
        raise StoreError(
            f"a layer cannot be searched for secrets: {error}", where=str(path), hint="build the image again"
        ) from error
    return LayerScan(
        files=tar.files,
        bytes=tar.end,
        findings=tuple(replace(finding, file=digests[results.found[finding]]) for finding in kept),
        notes=tuple(results.notes),
    )


def _digests(path: Path, spans: Collection[_Span]) -> Mapping[_Span, str]:
    """Hash the files with findings, by reading the layer again; there are usually none."""
    if not spans:
        return {}
    hashes = {span: hashlib.sha256() for span in spans}
    last, at = max(end for _, end in spans), 0
    with tarstream.open_layer(path) as stream:
        while at < last and (chunk := stream.read(_CHUNK)):
            for (start, end), digest in hashes.items():
                if start < at + len(chunk) and at < end:
                    digest.update(chunk[max(0, start - at) : end - at])
            at += len(chunk)
    return {span: digest.hexdigest() for span, digest in hashes.items()}


@dataclass(kw_only=True)
class _Collected:
    """A file that is collected while the window slides over it, so far up to `at`."""

    entry: _Entry
    kind: str
    at: int
    data: BinaryIO = field(default_factory=archives.copy)


class _Tar:
    """The window over one tar: a layer, or an archive in one."""

    def __init__(
        self, results: _Results, files: _Files | None = None, outer: TextPlace | None = None
    ) -> None:
        self._results = results
        self._search = results.search
        # For an archive: the reader of its members, and its own position.
        self._files = files
        self._outer = outer
        self._window = b""
        self._base = 0
        self._seen = 0
        self._hits: list[Hit] = []
        self._header = 0
        self._long: dict[bytes, bytes] = {}
        self._entries: list[_Entry] = []
        self._fresh: list[_Entry] = []
        self._collected: list[_Collected] = []
        self.files = 0

    def read(self, stream: Stream) -> None:
        """Search all of it."""
        try:
            while chunk := stream.read(_CHUNK):
                self._window += chunk
                self._step(self.end - AHEAD, self.end - self._search.longest)
            self._step(self.end, self.end)
        finally:
            for item in self._collected:
                item.data.close()

    @property
    def end(self) -> int:
        """How far it was read."""
        return self._base + len(self._window)

    def _step(self, limit: int, seen: int) -> None:
        """Examine hits up to one position, search for more up to another, and drop finished data."""
        self._parse()
        self._choose(last=limit == self.end)
        self._collect()
        self._find(seen)
        self._confirm(limit)
        keep = min([limit - BEHIND, seen, self._header, *(entry.start for entry in self._fresh)])
        if keep > self._base:
            self._window = self._window[keep - self._base :]
            self._base = keep
        self._entries = [entry for entry in self._entries if entry.end > self._base]

    def _parse(self) -> None:
        """Read the headers that are in the window: POSIX ustar with pax and GNU's long names (tar(5))."""
        while self._header + _BLOCK <= self.end:
            at = self._header - self._base
            block = self._window[at : at + _BLOCK]
            if not block.strip(b"\0"):
                self._header += _BLOCK
                continue
            kind, size = block[156:157], _number(block[124:136])
            start = self._header + _BLOCK
            if kind in b"xXgLK":
                if size > _LONGEST_HEADER:
                    raise ValueError("a header of the tar is too long")
                if start + size > self.end:
                    return
                self._extend(kind, self._window[start - self._base :][:size])
            else:
                start += self._sparse_map(block, start) if kind == b"S" else 0
                if start > self.end:
                    return
                size = int(self._long.pop(b"size", b"") or size)
                if size < 0:
                    # It would lead backwards, in an endless loop.
                    raise ValueError("a file of the tar has a negative size")
                size = 0 if kind in _EMPTY else size
                self._enter(block, kind, start, size)
            self._header = start + -(-size // _BLOCK) * _BLOCK

    def _sparse_map(self, header: bytes, start: int) -> int:
        """Measure the blocks between the header of GNU's sparse files and the content (tar(5)).

        The content is what is not a hole. Where the window ends first, the length leads behind its end.
        """
        length, more = 0, header[482]
        while more:
            length += _BLOCK
            if length > _LONGEST_HEADER:
                raise ValueError("a header of the tar is too long")
            last = start - self._base + length
            more = last <= len(self._window) and self._window[last - _BLOCK + 504]
        return length

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            self._long[b"path"] = data.rstrip(b"\0")
        elif kind in b"xX":
            self._long.update(dict(_PAX.findall(data)))

    def _enter(self, block: bytes, kind: bytes, start: int, size: int) -> None:
        prefix, name = block[345:500].split(b"\0")[0], block[:100].split(b"\0")[0]
        short = prefix + b"/" + name if prefix and block[257:262] == b"ustar" else name
        path = self._long.pop(b"path", short).decode("utf-8", "replace")
        entry = _Entry(path=path, start=start, end=start + size)
        for mark in self._search.paths:
            if mark.data in b"/" + path.encode().removeprefix(b"./"):
                self._note(self._search.marked(mark, self._place(entry), 0), entry)
        self._entries.append(entry)
        if self._files:
            self._files.budget.enter()
        if kind not in _EMPTY:
            self.files += 1
            if size:
                self._fresh.append(entry)

    def _place(self, entry: _Entry) -> TextPlace:
        return self._outer.member(entry.path) if self._outer else TextPlace.of(entry.path)

    def _choose(self, *, last: bool) -> None:
        """Decide whether to collect a file, once its first bytes are in the window."""
        waiting = []
        for entry in self._fresh:
            low = entry.start - self._base
            if not last and min(entry.end, entry.start + archives.HEAD) > self.end:
                waiting.append(entry)
                continue
            head, size = (
                self._window[low : low + min(archives.HEAD, entry.end - entry.start)],
                entry.end - entry.start,
            )
            kind = archives.kind(head, entry.path)
            if kind and size > _PACKED:
                self._results.remark(self._place(entry).shown, "an archive that is too large to be opened")
            elif kind or size <= SMALL or (size <= TEXT and b"\0" not in head):
                self._collected.append(_Collected(entry=entry, kind=kind, at=entry.start))
        self._fresh = waiting

    def _collect(self) -> None:
        """Collect the chosen files from the window, and search those that are complete."""
        while self._collected:
            item, entry = self._collected[0], self._collected[0].entry
            data = self._window[item.at - self._base : entry.end - self._base]
            if entry.end > self.end:
                # The files of a tar lie one after the other: it is the last one.
                item.data.write(data)
                item.at += len(data)
                return
            if item.at > entry.start:
                item.data.write(data)
                item.data.seek(0)
                self._take(item, b"" if item.kind else item.data.read())
            else:
                self._take(item, data)
            self._collected.pop(0).data.close()

    def _take(self, item: _Collected, data: bytes) -> None:
        """Search a collected file: its data, or the archive."""
        place, entry = self._place(item.entry), item.entry
        if not item.kind:
            for finding in self._search.rest(data, place):
                self._note(finding, entry)
            return
        files = self._files or _Files(self._results, (entry.start, entry.end))
        if data:
            item.data.write(data)
            item.data.seek(0)
        files.open(item.kind, item.data, place)

    def _find(self, limit: int) -> None:
        """Search new data for anchors, up to where the longest anchor would be cut."""
        if limit <= self._seen:
            return
        for hit in self._search.hits(self._window[self._seen - self._base :]):
            position = self._seen + hit.position
            if position < limit:
                self._hits.append(Hit(position, hit.what))
        self._seen = limit

    def _confirm(self, limit: int) -> None:
        """Examine the hits for which the window has enough data."""
        waiting = []
        for hit in self._hits:
            if hit.position >= limit:
                waiting.append(hit)
                continue
            entry, inside = self._entry_at(hit.position)
            if entry is None or not (inside or isinstance(hit.what, Mark)):
                continue
            here = Hit(hit.position - self._base, hit.what)
            low = max(entry.start - self._base, 0) if inside else here.position
            high = min(entry.end - self._base, len(self._window)) if inside else len(self._window)
            self._note(self._search.confirm(here, self._window, low, high, self._place(entry)), entry)
        self._hits = waiting

    def _entry_at(self, position: int) -> tuple[_Entry | None, bool]:
        """Return the file at a position, and whether the position is in its content, not its header."""
        index = bisect_right(self._entries, position, key=lambda entry: entry.start)
        if index and position < self._entries[index - 1].end:
            return self._entries[index - 1], True
        return (self._entries[index], False) if index < len(self._entries) else (None, False)

    def _note(self, finding: SecretFinding | None, entry: _Entry) -> None:
        self._results.note(finding, self._files.span if self._files else (entry.start, entry.end))


class _Files:
    """The members of one archive of a layer, and of the archives in it."""

    def __init__(self, results: _Results, span: _Span) -> None:
        size = span[1] - span[0]
        self.span = span
        self.budget = UnpackBudget(bytes=min(max(_LEAST, _RATIO * size), _GREATEST))
        self._results = results
        self._depth = 0

    def open(self, kind: str, data: Stream, place: TextPlace) -> None:
        """Search an archive; a damaged or endless one becomes a note or a finding."""
        self._depth += 1
        try:
            archives.require_depth(self._depth)
            if kind == "tar":
                _Tar(self._results, self, place).read(data)
                return
            for name, content in archives.members(kind, data):
                self.budget.enter()
                inner = place.member(name) if name else replace(place, name=archives.inner_name(place.name))
                self._member(Metered(stream=content, budget=self.budget), inner)
        except ExceededError as error:
            if self._depth > 1:
                raise
            about = f"archive that could not be searched completely: {error}"
            size = f"{self.span[1] - self.span[0]} bytes"
            self._results.note(
                SecretFinding(
                    rule="archive-bounds", about=about, path=place.path, line=0, hint=size, sha256=""
                ),
                self.span,
            )
        except archives.errors() as error:
            self._results.remark(
                place.shown, f"could not be searched completely: {error or type(error).__name__}"
            )
        finally:
            self._depth -= 1

    def _member(self, stream: Metered, place: TextPlace) -> None:
        first = b""
        while len(first) <= TEXT and (more := stream.read(_CHUNK)):
            first += more
        kind = archives.kind(first[: archives.HEAD], place.name)
        whole = len(first) <= TEXT
        if kind:
            self.open(kind, Metered(stream=stream, budget=self.budget, first=first), place)
        elif whole and (len(first) <= SMALL or b"\0" not in first[: archives.HEAD]):
            self._tell(self._results.search.text(first, place))
        else:
            self._pieces(first, stream, place)

    def _pieces(self, first: bytes, stream: Stream, place: TextPlace) -> None:
        """Search a large member only for what is searched in all bytes."""
        search, data, done = self._results.search, first, 0
        while True:
            more = stream.read(_CHUNK)
            limit = len(data) - AHEAD if more else len(data)
            for hit in search.hits(data):
                if done <= hit.position < limit and (found := search.confirm(hit, data, 0, len(data), place)):
                    self._results.note(found, self.span)
            if not more:
                return
            keep = max(0, limit - BEHIND)
            data, done = data[keep:] + more, limit - keep

    def _tell(self, findings: Iterable[SecretFinding]) -> None:
        for finding in findings:
            self._results.note(finding, self.span)


def _number(field: bytes) -> int:
    """Read a size: octal, or in base 256 where the first bit is set (GNU)."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:])
    size = int(field.strip(b" \0") or b"0", 8)
    if size < 0:
        raise ValueError("a header of the tar has a negative size")
    return size
