"""Progress on a terminal: what runs is a row that changes, and what is finished scrolls away above."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from imagebuilder.core.progress import human

_COLOURS = {"cached": "dim", "done": "green", "failed": "red"}
# Of a layer's time, as a rough guess for the expected end: downloading its packages, before work on them.
_DOWNLOAD = 0.5
_WIDTH = 12
# Lines that are not rows: the last one with the rest, one for rows without room, and the cursor's.
_OTHER_LINES = 3


class LiveTable:
    """Rows of what runs, and below them one line with the rest and the expected end.

    However many layers an image has, the rows fit on the terminal: what is finished is printed once, above.
    """

    def __init__(self, console: Console) -> None:
        """Use the table as a context manager to show it."""
        self._bars = _Bars(console)
        self._rows: dict[str, TaskID] = {}
        self._ended: set[str] = set()
        self._expected: dict[str, int] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def expect(self, sizes: Mapping[str, int]) -> None:
        with self._lock:
            self._expected |= sizes
            self._count()

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        with self._lock:
            self._forget(key)
            self._rows[key] = self._bars.add_task(title, total=total or None, state=state, at="")
            self._count()

    def advance(self, key: str, count: int) -> None:
        with self._lock:
            row = self._rows[key]
            self._bars.update(row, advance=count, at="")
            self._count()

    def at(self, key: str, text: str, done: int, total: int) -> None:
        with self._lock:
            self._bars.update(self._rows[key], at=f"{done} of {total}: {text}", steps=(done, total))
            self._count()

    def end(self, key: str, title: str, state: str, size: int = 0) -> None:
        with self._lock:
            self._forget(key)
            self._ended.add(key)
            self._count()
        line = Text.assemble((f"{state:<{_WIDTH}}", _COLOURS.get(state, "")), f" {title}")
        if size:
            line.append(f"  {human(size)}", "dim")
        self._bars.console.print(line)

    def note(self, text: str) -> None:
        self._bars.console.print(Text(text, "dim"))

    def _forget(self, key: str) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._bars.remove_task(row)

    def _count(self) -> None:
        """Bring the last line up to date: bytes of packages, as far as they are downloaded and worked on."""
        tasks = {task.id: task for task in self._bars.tasks}
        done = 0.0
        for key, size in self._expected.items():
            if key in self._ended:
                done += size
            elif key in self._rows:
                done += size * _share(tasks[self._rows[key]])
        self._bars.update(self._bars.rest, completed=done, total=sum(self._expected.values()) or None)
        self._bars.ended = len(self._ended & self._expected.keys())
        self._bars.expected = len(self._expected)


class _Bars(Progress):
    """The rows, as many as fit, and the last line."""

    def __init__(self, console: Console) -> None:
        one_line = Column(no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn(f"[cyan]{{task.fields[state]:<{_WIDTH}}}", table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", table_column=one_line, markup=False),
            BarColumn(bar_width=16),
            _Done(table_column=one_line),
            console=console,
            refresh_per_second=4,
            transient=True,
        )
        self.ended = self.expected = 0
        self.rest = self.add_task("", total=None, state="", at="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if not self.tasks:
            return  # rich asks before this object is complete
        *running, rest = sorted(self.tasks, key=lambda task: task.id == self.rest)
        room = max(1, self.console.height - _OTHER_LINES)
        if running:
            yield self.make_tasks_table(running[:room])
        if more := len(running[room:]):
            yield Text(f"... and {more} more", "dim")
        if self.expected:
            waiting = max(0, self.expected - self.ended - len(running))
            left = f"; about {_clock(rest.time_remaining)} left" if rest.time_remaining else ""
            yield Text(
                f"{self.ended} of {self.expected} made, {len(running)} running, {waiting} waiting{left}",
                no_wrap=True,
                overflow="ellipsis",
            )


class _Done(ProgressColumn):
    """How far a row is: bytes, or what it is at, or the time since it began."""

    def render(self, task: Task) -> Text:
        if task.fields["at"]:
            return Text(task.fields["at"])
        if not task.total:
            return Text(
                f"{task.elapsed or 0:.0f} s" + (f"  {human(task.completed)}" if task.completed else "")
            )
        speed = f"  {human(task.speed)}/s" if task.speed else ""
        return Text(f"{human(min(task.completed, task.total))} of {human(task.total)}{speed}")


def _share(task: Task) -> float:
    """Guess which part of a layer is done, by its row."""
    done, total = task.fields.get("steps") or (task.completed, task.total or 0)
    share = min(done / total, 1.0) if total else 0.0
    if task.fields["state"] == "downloading":
        return share * _DOWNLOAD
    return _DOWNLOAD + share * (1 - _DOWNLOAD)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
