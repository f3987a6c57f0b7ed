"""Progress of a build: one small interface, and its output for a terminal, for CI and for programs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Protocol

Advance = Callable[[int], None]
"""Called with the number of bytes done since the last call; may be called from any thread."""

_LINE_SECONDS = 10.0


def no_advance(_count: int) -> None:
    """Discard the report."""


class Progress(Protocol):
    """The interface that an engine reports to; calls may come from any thread.

    `key` names one row (a layer or a step) from its first `begin` to its `end`.
    """

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Announce the rows to come: the bytes of packages that each stands for, by its key."""

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        """Show a row, or move it to another state (`downloading`, `splicing`, ...); `total` is in bytes."""

    def advance(self, key: str, count: int) -> None:
        """Add to the bytes done of a row."""

    def at(self, key: str, text: str, done: int, total: int) -> None:
        """Say what a row without bytes is at, such as a package, and how many of all are done."""

    def end(self, key: str, title: str, state: str, size: int = 0) -> None:
        """Finish a row as `cached`, `done` or `failed`; `size` is the layer's compressed size in bytes."""

    def note(self, text: str) -> None:
        """Show a separate line."""


@dataclass(kw_only=True)
class _Row:
    title: str
    state: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    @property
    def speed(self) -> float:
        return self.done / max(time.monotonic() - self.started, 0.001)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def is_due(self) -> bool:
        """Return whether it is time for the next line; that line is counted."""
        now = time.monotonic()
        if now - self.said < _LINE_SECONDS:
            return False
        self.said = now
        return True


class LineProgress:
    """Plain lines for CI and pipes: one when a row changes its state, and one every ten seconds between."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Say nothing: a log has a line for each row."""

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        with self._lock:
            self._rows[key] = _Row(title=title, state=state, total=total)
            self._say(f"{state:<12} {title}" + (f"  {human(total)}" if total else ""))

    def advance(self, key: str, count: int) -> None:
        with self._lock:
            row = self._rows[key]
            row.done += count
            if row.is_due():
                share = f" of {human(row.total)}" if row.total else ""
                self._say(f"{row.state:<12} {row.title}  {human(row.done)}{share}, {human(row.speed)}/s")

    def at(self, key: str, text: str, done: int, total: int) -> None:
        with self._lock:
            row = self._rows[key]
            if row.is_due():
                self._say(f"{row.state:<12} {row.title}  {text}, {done} of {total}")

    def end(self, key: str, title: str, state: str, size: int = 0) -> None:
        with self._lock:
            row = self._rows.pop(key, None)
            took = f"  {row.seconds:.1f} s" if row else ""
            self._say(f"{state:<12} {title}" + (f"  {human(size)}" if size else "") + took)

    def note(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def _say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class JsonProgress:
    """One JSON object a line, for programs: `event`, `key`, `title`, `state`, and bytes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._said: dict[str, float] = {}

    def expect(self, sizes: Mapping[str, int]) -> None:
        self._say(event="expect", sizes=dict(sizes))

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        self._done[key] = 0
        self._say(event="begin", key=key, title=title, state=state, total=total)

    def advance(self, key: str, count: int) -> None:
        with self._lock:
            self._done[key] = self._done.get(key, 0) + count
        if self._is_due(key):
            self._say(event="advance", key=key, done=self._done[key])

    def at(self, key: str, text: str, done: int, total: int) -> None:
        if self._is_due(key):
            self._say(event="at", key=key, text=text, done=done, total=total)

    def end(self, key: str, title: str, state: str, size: int = 0) -> None:
        self._say(event="end", key=key, title=title, state=state, size=size)

    def note(self, text: str) -> None:
        self._say(event="note", text=text)

    def _is_due(self, key: str) -> bool:
        """Return whether the last line of this row is a second old; the next one is counted."""
        with self._lock:
            now = time.monotonic()
            if now - self._said.get(key, 0.0) < 1.0:
                return False
            self._said[key] = now
            return True

    def _say(self, **fields: object) -> None:
        with self._lock:
            self._stream.write(json.dumps(fields) + "\n")
            self._stream.flush()


def human(count: float) -> str:
    """Write a number of bytes in decimal units, as registries and disks count: `3.7 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextmanager
def shown(kind: str, stream: IO[str]) -> Iterator[Progress]:
    """Show progress on a stream while the block runs.

    Args:
        kind: `auto` (a table on a terminal, lines elsewhere), `table`, `lines` or `json`.
        stream: usually standard error, because results go to standard output.

    """
    if kind == "auto":
        kind = "table" if stream.isatty() else "lines"
    if kind == "json":
        yield JsonProgress(stream)
    elif kind == "lines":
        yield LineProgress(stream)
    else:
        from rich.console import Console

        from imagebuilder.core.livetable import LiveTable

        with LiveTable(Console(file=stream)) as table:
            yield table
