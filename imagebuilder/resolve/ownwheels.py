"""Wheels of one's own: a stranger's package of the same name on an index never takes their place unnoticed.

uv looks at wheel folders and indexes together, and takes the newest version. A higher number on an index,
under the name of a wheel in a folder, would be chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagebuilder.errors import Problem
from imagebuilder.host import settings
from imagebuilder.host.site import Site
from imagebuilder.resolve.request import Request
from imagebuilder.resolve.uv import File


def first(files: Iterable[File], site: Site) -> tuple[File, ...]:
    """Put the files that lie in the site file's folders before those of indexes."""
    return tuple(sorted(files, key=lambda file: not _is_own(file, site)))


def displaced(request: Request, chosen: Mapping[str, tuple[str, File]], site: Site) -> tuple[Problem, ...]:
    """Find packages that an index gives, although a wheel folder of the site file has the same name.

    Args:
        request: a version that it names in full is taken from wherever it is.
        chosen: version and file of each package, by normalised name.
        site: whose wheel folders count.

    """
    own = _wheels(site)
    named = _named(request)
    problems = []
    for name, (version, file) in sorted(chosen.items()):
        mine = own.get(name, {})
        if not mine or _is_own(file, site):
            continue
        if name in named and Version(version) not in mine:
            continue
        newest = max(mine)
        problems.append(
            Problem(
                message=f"{name} {version} would come from a package index, but the wheel folder "
                f"{mine[newest].parent} has {name} {newest}: they may be packages of two people",
                where=request.places.of("pip"),
                hint=f'write "{name}=={newest}" under `pip:` for the one in the folder; for the other write '
                f'"{name}=={version}", and have no wheel of that version in the folder',
            )
        )
    return tuple(problems)


def _wheels(site: Site) -> dict[str, dict[Version, Path]]:
    """List the wheels in the site file's folders, by name and version."""
    found: dict[str, dict[Version, Path]] = {}
    for folder in _folders(site):
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            found.setdefault(name, {}).setdefault(version, path)
    return found


def _folders(site: Site) -> tuple[Path, ...]:
    return tuple(
        path.resolve() for path in map(settings.local_path, site.own_wheel_folders) if path is not None
    )


def _is_own(file: File, site: Site) -> bool:
    path = settings.local_path(file.url)
    return path is not None and path.parent.resolve() in _folders(site)


def _named(request: Request) -> frozenset[str]:
    """Name the packages whose version the recipe says: the pins, and what `pip:` has with `==`."""
    asked = map(Requirement, request.requirements)
    exact = {
        canonicalize_name(one.name)
        for one in asked
        if any(part.operator in ("==", "===") and "*" not in part.version for part in one.specifier)
    }
    pins = (*request.wheel_pins, *(mirrored.wheel for mirrored in request.mirrored))
    return frozenset(exact | {canonicalize_name(pin.package) for pin in pins})
