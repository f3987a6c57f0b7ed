"""What images with `slim: true` leave out (slim.yaml). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache, cached_property
from importlib import resources
from typing import Annotated

from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.lock.model import Deb, Wheel
from imagebuilder.plan import groups

_FILE = "slim.yaml"
_WILD = re.compile(r"[*?\[]")


class _Files(Strict):
    reason: Annotated[str, Field(description="Why nobody misses these files.")]
    leave_out: Annotated[tuple[str, ...], Field(description="Patterns of paths.")]
    keep: Annotated[tuple[str, ...], Field(description="Patterns of paths that stay all the same.")] = ()


class _DebianFiles(_Files):
    sources: Annotated[
        tuple[str, ...], Field(description="Source packages of libraries, if others may need them.")
    ] = ()
    only_for: Annotated[tuple[str, ...], Field(description="Source packages that do without them.")] = ()


class _Lists(Strict):
    debian: dict[str, _DebianFiles]
    wheels: dict[str, _Files]


@dataclass(frozen=True)
class Slim:
    """Patterns of paths that an image leaves out, and of those among them that it keeps."""

    leave_out: tuple[str, ...]
    keep: tuple[str, ...]

    def leaves_out(self, path: str, *, is_link: bool = False) -> bool:
        """Return whether a file is left out.

        Links may lead to folders with files to keep. As dpkg does, all links stay that are below the folder
        where a pattern of such files begins: in /usr/share/doc many packages share a folder by a link.
        """
        if not self._leave_out.fullmatch(path) or self._keep.fullmatch(path):
            return False
        return not (is_link and path.startswith(self._folders))

    @cached_property
    def _leave_out(self) -> re.Pattern[str]:
        return re.compile("|".join(map(translate, self.leave_out)))

    @cached_property
    def _keep(self) -> re.Pattern[str]:
        return re.compile("|".join(map(translate, self.keep)) or r"(?!)")

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        return tuple(_WILD.split(pattern, maxsplit=1)[0] for pattern in self.keep if _WILD.search(pattern))


def debian() -> Slim:
    """Return the patterns for the files of Debian packages."""
    files = _lists().debian.values()
    return Slim(
        leave_out=tuple(pattern for each in files for pattern in each.leave_out),
        keep=tuple(pattern for each in files for pattern in each.keep),
    )


def dpkg_settings() -> str:
    """Return settings for dpkg, so that packages installed in a container bring these files neither.

    Libraries are not among them: a package that is installed later may need them, and apt can reinstall them.
    """
    files = [each for each in _lists().debian.values() if not each.sources]
    lines = (
        "# This image has `slim: true`: imagebuilder has left out these files.",
        *(f"path-exclude={pattern}" for each in files for pattern in each.leave_out),
        *(f"path-include={pattern}" for each in files for pattern in each.keep),
    )
    return "".join(f"{line}\n" for line in lines)


def libraries(debs: Iterable[Deb]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of packages whose libraries are left out, and of those that do without them."""
    gone, free = set(), set()
    for deb in debs:
        source = groups.source(deb)
        for each in _lists().debian.values():
            if any(fnmatchcase(source, pattern) for pattern in each.sources):
                gone.add(deb.name)
            elif source in each.only_for:
                free.add(deb.name)
    return frozenset(gone), frozenset(free)


def of_wheels(wheels: Iterable[Wheel]) -> tuple[tuple[str, Slim], ...]:
    """Return the patterns for each wheel's members, by its file name; most wheels have none."""
    return tuple(
        (wheel.file, Slim(leave_out=files.leave_out, keep=files.keep))
        for wheel in wheels
        for name, files in _lists().wheels.items()
        if fnmatchcase(wheel.name, name)
    )


@cache
def _lists() -> _Lists:
    raw = resources.files("imagebuilder.plan").joinpath(_FILE).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/{_FILE}"), _Lists)
