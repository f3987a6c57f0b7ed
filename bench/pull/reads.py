"""Which files of an image a program really reads: those that are in the page cache after it ran.

The cache is dropped first. What the kernel reads ahead is counted too, so the share is an upper bound.
`fincore` (util-linux) asks with mincore(2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.sidebyside.consumer import forget_files
from imagebuilder.core import process

_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What a program read of an image.

    Attributes:
        files, size: of the whole image, unpacked, in bytes.
        read: the files of which anything was read: path, bytes read, size; the largest part first.

    """

    files: int
    size: int
    read: tuple[tuple[str, int, int], ...]


def read_files(folder: Path, program: Callable[[], None]) -> Reads:
    """Run a program that reads files below a folder, an engine's, and see which."""
    program()  # what is made once, such as the engine's own files, is there
    forget_files()
    program()
    files = [path for path in _regular(folder) if "/fs/" in path]
    pieces = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
    found = [row for piece in pieces for row in _cached(piece)]
    read = [(path.partition("/fs/")[2], part, size) for path, part, size in found if part]
    read.sort(key=lambda row: -row[1])
    return Reads(files=len(files), size=sum(size for _, _, size in found), read=tuple(read))


def _regular(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield str(path)


def _cached(files: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    command = ["fincore", "--bytes", "--raw", "--noheadings", "--output", "RES,SIZE", *files]
    lines = process.run(command, timeout=300).stdout.splitlines()
    for path, line in zip(files, lines, strict=True):
        part, size = line.split()
        yield path, min(int(part), int(size)), int(size)
