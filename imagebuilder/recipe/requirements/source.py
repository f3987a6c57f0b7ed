"""Open one requirement file: a plain UTF-8 file of a bounded size, never behind a symlink."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.recipe.requirements.demand import Wrong

# Bytes of a file. The lock of a large project has three megabytes.
_LIMIT = 8_000_000
# Requirements, dependencies or packages read from one file. A large project has a thousand.
_MOST = 20_000
# tomllib's time grows with the square of a dotted key's length: 64 kB of `a.a.a` take 23 seconds.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*+\.[ \t]*+){{32}}")
_KEY = re.compile(r"""\s*+["']?([A-Za-z0-9_.-]++)["']?\s*+=""")
_QUOTED = re.compile(r""""([^"\n]*+)"|'([^'\n]*+)'""")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a recipe asks for when it names a file.

    Attributes:
        place: the line of the recipe that names the file, for messages.
        environment: the image's values of the variables in markers.
        extras, groups: the extras and groups that the image needs.
        looked_at: how many items of the file have been read so far.

    """

    place: str
    environment: Mapping[str, str]
    extras: frozenset[str]
    groups: frozenset[str]
    looked_at: list[int] = field(default_factory=lambda: [0])

    def look(self, place: str) -> None:
        """Count one more item of the file.

        Raises:
            Wrong: the file has more items than any project would have.

        """
        self.looked_at[0] += 1
        if self.looked_at[0] > _MOST:
            raise Wrong(place, f"is item {_MOST + 1} of this file", "is this the right file?")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A file as it was read: `entry` is its path from `folder`, `shown` its name for messages."""

    folder: Path
    entry: str
    shown: str
    text: str

    def at(self, line: int) -> str:
        """Return the location of a line, for messages."""
        return f"{self.shown}:{line}"

    def toml(self) -> dict[str, Any]:
        """Parse the file as TOML.

        Raises:
            Wrong: it is not valid TOML.

        """
        return _toml(self.text, self.shown)

    def beside(self, path: str, place: str) -> Text:
        """Open another file by its path relative to this one; `place` is the line that names it."""
        return open_text(self.folder, os.path.join(os.path.dirname(self.entry), path), place)  # noqa: PTH118, PTH120

    def line_of(self, value: str, start: int = 1) -> int:
        """Return the first line, from `start` on, that has this value in quotes; `start` if none has."""
        return next((line for line in self._quoted.get(value, ()) if line >= start), start)

    def line_of_key(self, key: str, header: str = "") -> int:
        """Return the line of a TOML key after the first header that begins with `header`; 1 if not there."""
        start = next((line for line, text in self._headers if text.startswith(header)), 1)
        return next((line for line in self._keys.get(key, ()) if line >= start), 1)

    @cached_property
    def _quoted(self) -> Mapping[str, list[int]]:
        return _index(
            (match[1] if match[1] is not None else match[2], number)
            for number, line in enumerate(self.text.split("\n"), 1)
            for match in _QUOTED.finditer(line)
        )

    @cached_property
    def _keys(self) -> Mapping[str, list[int]]:
        lines = enumerate(self.text.split("\n"), 1)
        return _index((match[1], number) for number, line in lines if (match := _KEY.match(line)))

    @cached_property
    def _headers(self) -> list[tuple[int, str]]:
        lines = enumerate(self.text.split("\n"), 1)
        return [(number, line.strip()) for number, line in lines if line.lstrip().startswith("[")]

    def lines_of(self, header: str) -> list[int]:
        """Find the lines of a header such as `[[package]]`, in order."""
        return [n for n, line in enumerate(self.text.split("\n"), 1) if line.strip() == header]


def _index(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = {}
    for key, number in pairs:
        lines.setdefault(key, []).append(number)
    return lines


def open_text(folder: Path, entry: str, place: str) -> Text:
    """Read a file by its path relative to a folder. The path may contain `..`, but no symlink.

    Raises:
        InputError: the path has a symlink, or the file is not a plain file, not UTF-8, or too large.

    """
    shown = printable(os.path.normpath(folder / entry))
    path = folder.resolve()
    for part in entry.split("/"):
        if part == "..":
            path = path.parent
        elif part not in {"", "."}:
            path /= part
            if path.is_symlink():
                raise InputError(
                    f"{shown} is behind a symlink: {printable(part)}",
                    where=place,
                    hint="give a path without symlinks",
                )
    return Text(folder=folder, entry=entry, shown=shown, text=_decoded(_read(path, shown, place), shown))


def _read(path: Path, shown: str, place: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{shown} is not a plain file", where=place, hint="name a file")
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise InputError(
            f"{shown} cannot be read: {error.strerror}",
            where=place,
            hint="paths are relative to the folder of the file that names them",
        ) from None
    if len(raw) > _LIMIT:
        raise InputError(f"is larger than {_LIMIT} bytes", where=shown, hint="is this the right file?")
    return raw


def _decoded(raw: bytes, shown: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8", where=f"{shown}:{line}", hint="save it as UTF-8") from None


# Cached, because every platform of a recipe reads the same file.
@lru_cache(maxsize=4)
def _toml(text: str, shown: str) -> dict[str, Any]:
    hint = "see toml.io, or write the file again with the tool that made it"
    if match := _LONG_KEY.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise Wrong(f"{shown}:{line}", "has a key of more than 32 parts", "is this the right file?")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Wrong(shown, "is nested too deeply", "is this the right file?") from None
    except ValueError as error:
        reason = str(error)
        line_of_error = re.search(r" \(at line (\d+), column \d+\)$", reason)
        place = f"{shown}:{line_of_error[1]}" if line_of_error else shown
        short = printable(reason[: line_of_error.start()] if line_of_error else reason)
        raise Wrong(place, f"is not valid TOML: {short}", hint) from None
