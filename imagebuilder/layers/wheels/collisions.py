"""Two wheels of one image that write different things to one path: layers of their own would hide it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from imagebuilder.errors import BuildError
from imagebuilder.layers import archive
from imagebuilder.layers.wheels import placement
from imagebuilder.layers.wheels.file import NO_ZIP, TEXT_LIMIT, WheelFile, listed, opened, read_wheel
from imagebuilder.layers.wheels.layer import merge
from imagebuilder.layers.wheels.placement import Environment

# Which Python it is for changes nothing: all wheels go to the same one.
_ENVIRONMENT = Environment(venv="/venv", python="3")
# What zipfile raises for wheels that are not read here, but in full, and then refused.
_UNREADABLE = (*NO_ZIP, NotImplementedError, RuntimeError, zlib.error, BuildError)


def check_collisions(wheels: Mapping[str, Path]) -> None:
    """Refuse wheels that write different things to one path, by their zip directories alone.

    Args:
        wheels: file name and file of every wheel of an image, in the order of the layers.

    Raises:
        BuildError: names both wheels and the path, for every such pair.

    """
    suspects = _suspects(wheels)
    read = [read_wheel(file, path) for file, path in wheels.items() if file in suspects]
    merge([placement.place(wheel, _ENVIRONMENT) for wheel in read], _ENVIRONMENT)


def _suspects(wheels: Mapping[str, Path]) -> frozenset[str]:
    """Name the wheels that share a path with another, or have a file where another has a folder.

    To read a wheel in full takes ten times as long as its list of names, and most have no name in common.
    """
    owner: dict[str, str] = {}
    found: set[str] = set()
    for file, path in wheels.items():
        try:
            for place in _paths(file, path):
                if owner.setdefault(place, file) != file:
                    found |= {file, owner[place]}
        except _UNREADABLE:
            found.add(file)
    for place, file in owner.items():
        for folder in archive.parents(place):
            if folder in owner:
                found |= {file, owner[folder]}
    return frozenset(found)


def _paths(file: str, path: Path) -> Iterator[str]:
    """Say where a wheel's files go, by their names alone; what it raises is in `_UNREADABLE`."""
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
