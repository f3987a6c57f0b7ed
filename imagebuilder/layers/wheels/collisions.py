"""Finds two wheels of an image that write different content to one path.

Wheels in separate layers would hide that: the upper layer's file would win silently.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from imagebuilder.errors import BuildError
from imagebuilder.layers import archive
from imagebuilder.layers.wheels import placement
from imagebuilder.layers.wheels.file import TEXT_LIMIT, WheelFile, read_wheel
from imagebuilder.layers.wheels.layer import merge
from imagebuilder.layers.wheels.members import NO_ZIP, listed, opened
from imagebuilder.layers.wheels.placement import VenvLayout

# Any Python will do, as all wheels are installed for the same one.
_ENVIRONMENT = VenvLayout(venv="/venv", python="3")
# Errors for wheels whose names cannot be listed; these are then read in full, and refused there.
_UNREADABLE = (*NO_ZIP, NotImplementedError, RuntimeError, zlib.error, BuildError)


def check_collisions(wheels: Mapping[str, Path]) -> None:
    """Refuse wheels that write different content to one path; most are compared by their file names alone.

    Args:
        wheels: the file of every wheel of an image by its file name, in the order of the layers.

    Raises:
        BuildError: names both wheels and the path, for every such pair.

    """
    suspects = _suspects(wheels)
    read = [read_wheel(file, path) for file, path in wheels.items() if file in suspects]
    merge([placement.place(wheel, _ENVIRONMENT) for wheel in read], _ENVIRONMENT)


def _suspects(wheels: Mapping[str, Path]) -> frozenset[str]:
    """Return the wheels that share a path with another, or have a file where another has a folder.

    Reading a wheel in full takes ten times as long as listing its names, and most wheels share no name.
    """
    owner: dict[str, str] = {}
    suspects: set[str] = set()
    for file, path in wheels.items():
        try:
            for place in _paths(file, path):
                if owner.setdefault(place, file) != file:
                    suspects |= {file, owner[place]}
        except _UNREADABLE:
            suspects.add(file)
    for place, file in owner.items():
        for folder in archive.parents(place):
            if folder in owner:
                suspects |= {file, owner[folder]}
    return frozenset(suspects)


def _paths(file: str, path: Path) -> Iterator[str]:
    """Return the paths of a wheel's files in the image, by their names alone; may raise `_UNREADABLE`."""
    with opened(file, path) as descriptor:
        infos, _ = listed(file, path, descriptor)
    names = [info.orig_filename for info in infos if not info.orig_filename.endswith("/")]
    dist_info = next((top for name in names if (top := name.partition("/")[0]).endswith(".dist-info")), "")
    commands = next((info for info in infos if info.filename == f"{dist_info}/entry_points.txt"), None)
    text = b""
    if commands:
        with zipfile.ZipFile(path) as zipped, zipped.open(commands) as member:
            text = member.read(TEXT_LIMIT)
    wheel = WheelFile(
        file=file,
        path=path,
        distribution=dist_info.partition("-")[0],
        dist_info=dist_info,
        members=(),
        hashes={},
        entry_points=text.decode(),
    )
    for name in names:
        if not placement.is_left_out(wheel, name):
            yield placement.destination(wheel, name, _ENVIRONMENT)
    for name in placement.script_names(wheel):
        yield f"{_ENVIRONMENT.root}/bin/{name}"
