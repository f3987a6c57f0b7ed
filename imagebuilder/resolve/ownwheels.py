"""Protect wheels in the site's folders: an index must not replace them with a package of the same name.

uv searches wheel folders and indexes together, and chooses the newest version. So a stranger could publish a
higher version under the name of a private wheel.
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
    """Sort files: those in the site file's folders first."""
    return tuple(sorted(files, key=lambda file: not _is_own(file, site)))


def displaced(request: Request, chosen: Mapping[str, tuple[str, File]], site: Site) -> tuple[Problem, ...]:
    """Report packages that come from an index although a wheel folder of the site file has the same name.

    Args:
        request: the request. Versions that it gives in full are accepted from anywhere.
        chosen: version and file of each package, by normalised name.
        site: the site with the wheel folders.

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
                f"{mine[newest].parent} has {name} {newest}: these may be two different packages",
                where=request.places.of("pip"),
                hint=f'write "{name}=={newest}" under `pip:` for the one in the folder; for the other write '
                f'"{name}=={version}", and have no wheel of that version in the folder',
            )
        )
    return tuple(problems)


def _wheels(site: Site) -> dict[str, dict[Version, Path]]:
    """Return the wheels in the site file's folders, by name and version."""
    wheels: dict[str, dict[Version, Path]] = {}
    for folder in _folders(site):
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            wheels.setdefault(name, {}).setdefault(version, path)
    return wheels


def _folders(site: Site) -> tuple[Path, ...]:
    return tuple(
        path.resolve() for path in map(settings.local_path, site.own_wheel_folders) if path is not None
    )


def _is_own(file: File, site: Site) -> bool:
    path = settings.local_path(file.url)
    return path is not None and path.parent.resolve() in _folders(site)


def _named(request: Request) -> frozenset[str]:
    """Return the packages whose version the recipe gives: pins, and those under `pip:` with `==`."""
    asked = map(Requirement, request.requirements)
    exact = {
        canonicalize_name(one.name)
        for one in asked
        if any(part.operator in ("==", "===") and "*" not in part.version for part in one.specifier)
    }
    pins = (*request.wheel_pins, *(linked.wheel for linked in request.linked))
    return frozenset(exact | {canonicalize_name(pin.package) for pin in pins})
