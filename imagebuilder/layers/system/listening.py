"""Which package an installation is at, from what dpkg prints."""

from __future__ import annotations

import re
from collections.abc import Callable

from imagebuilder.plan import OsLayer

# dpkg prints such a line before it unpacks or configures a package.
_STEP = re.compile(r"(Unpacking|Setting up) ([a-z0-9][a-z0-9+.-]{1,99})(?::[a-z0-9-]+)? \(")
# Ninja's `[3/40] ...`, and CMake's `[ 45%] ...`.
_COUNTED = re.compile(r"\s*\[(?:([0-9]{1,5})/([0-9]{1,5})| {0,2}([0-9]{1,3})%)\] ")
_SAYS = {"Unpacking": "unpacking", "Setting up": "setting up"}

At = Callable[[str, int, int], None]
"""Called with what is being done, and how many steps of all are done."""


def steps_heard(at: At) -> Callable[[str], None]:
    """Return a function that takes a compiler's lines, and reports the steps that ninja and CMake count.

    Args:
        at: takes the reports: a later build of the same compilation starts again at 1.

    """

    def hear(line: str) -> None:
        match = _COUNTED.match(line)
        if match and match[3]:
            at("compiling", int(match[3]), 100)
        elif match:
            at("compiling", min(int(match[1]), int(match[2])), int(match[2]))

    return hear


def listener(layer: OsLayer, at: At) -> Callable[[str], None]:
    """Return a function that takes the lines that an installation prints, and reports each step.

    A package's scripts may print such lines too, so only the layer's own packages count, each step once.

    Args:
        layer: its packages are unpacked, and then set up.
        at: takes the reports.

    """
    names = {deb.name for deb in layer.debs}
    done: set[tuple[str, str]] = set()

    def hear(line: str) -> None:
        match = _STEP.match(line)
        if match and match[2] in names and (match[1], match[2]) not in done:
            done.add((match[1], match[2]))
            at(f"{_SAYS[match[1]]} {match[2]}", len(done), 2 * len(names))

    return hear
