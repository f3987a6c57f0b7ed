"""Read a source distribution without executing anything: it is untrusted until its build is confined.

PEP 625 and PEP 643: a tar in gzip with one folder, in which `PKG-INFO` has the metadata, and setuptools'
`*.egg-info/requires.txt` the dependencies where older metadata lacks them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from imagebuilder.core import tarstream
from imagebuilder.core.yamlfile import printable
from imagebuilder.recipe.requirements.demand import Wrong
from imagebuilder.recipe.requirements.source import Text

MOST_FILES = 100_000
MOST_BYTES = 4 << 30
"""The largest sdist when it is unpacked: build roots have to hold it."""
_MOST_TEXT = 4 << 20
_MOST_REQUIREMENTS = 500
# PEP 518's default for an sdist without [build-system].
_DEFAULT = ("setuptools>=40.8.0", "wheel")
_SECTION = re.compile(r"\[([^:\]]*)(?::(.*))?\]")


class UnsafeError(ValueError):
    """The archive is not one that a build may unpack; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """What a source distribution says of itself.

    Attributes:
        depends: requirements of the installed package, with markers.
        requires: requirements of its build.

    """

    depends: tuple[str, ...]
    requires: tuple[str, ...]


def read(path: Path) -> Sdist:
    """Check every member of a source distribution, and read its metadata.

    Raises:
        UnsafeError: it is not a tar in gzip, is too large, or has a member that would be written elsewhere.

    """
    texts: dict[str, str] = {}
    try:
        with tarstream.open_layer(path) as stream:
            _walk(stream, texts)
    except UnsafeError:
        raise
    except tarstream.errors() as error:
        raise UnsafeError(f"is damaged: {printable(str(error))}") from error
    info = texts.get("PKG-INFO")
    if info is None:
        raise UnsafeError("has no PKG-INFO in its folder")
    declared = HeaderParser().parsestr(info).get_all("Requires-Dist") or []
    listed = next((text for name, text in sorted(texts.items()) if name.endswith("/requires.txt")), "")
    return Sdist(
        depends=_checked(declared or _of_egg_info(listed)), requires=_checked(_build_requires(texts))
    )


def _walk(stream: Any, texts: dict[str, str]) -> None:
    count, size, top = 0, 0, ""
    for entry, content in tarstream.entries(stream):
        count, size = count + 1, size + entry.size
        if count > MOST_FILES or size > MOST_BYTES:
            raise UnsafeError(f"unpacks to more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB")
        parts = _parts(entry.path)
        top = top or parts[0]
        if parts[0] != top:
            raise UnsafeError(f"has files beside its folder `{printable(top)}`: `{printable(parts[0])}`")
        if entry.is_symlink or entry.is_hardlink:
            start = posixpath.dirname(entry.path) if entry.is_symlink else ""
            led = posixpath.normpath(posixpath.join(start, entry.link))
            if entry.link.startswith("/") or led.split("/")[0] != top:
                raise UnsafeError(f"has a link out of its folder: `{printable(entry.path)}`")
        elif not (entry.is_file or entry.is_folder):
            raise UnsafeError(f"has `{printable(entry.path)}`, which is neither file, folder nor link")
        name = "/".join(parts[1:])
        if entry.is_file and entry.size <= _MOST_TEXT and _is_metadata(name):
            texts[name] = content.read().decode("utf-8", "replace")


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts or not parts:
        raise UnsafeError(f"has a member that would be written elsewhere: `{printable(path)}`")
    return parts


def _is_metadata(name: str) -> bool:
    return name in {"PKG-INFO", "pyproject.toml"} or name.endswith(".egg-info/requires.txt")


def _build_requires(texts: dict[str, str]) -> tuple[str, ...]:
    if "pyproject.toml" not in texts:
        return _DEFAULT
    name = "pyproject.toml"
    try:
        data = Text(folder=Path(), entry=name, shown=name, text=texts[name]).toml()
    except Wrong as error:
        raise UnsafeError(f"has a {name} that cannot be read: {error.problem.message}") from None
    system = data.get("build-system", {})
    values = system.get("requires", _DEFAULT) if isinstance(system, dict) else None
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise UnsafeError("has a [build-system] whose `requires` is not a list of texts")
    return tuple(values)


def _of_egg_info(text: str) -> Iterator[str]:
    """Translate setuptools' requires.txt, whose sections are `[extra:marker]`, to PEP 508."""
    extra = marker = ""
    for line in map(str.strip, text.splitlines()):
        if section := _SECTION.fullmatch(line):
            extra, marker = section[1], section[2] or ""
        elif line:
            terms = [f"({marker})"] if marker else []
            terms += [f'extra == "{extra}"'] if extra else []
            yield f"{line} ; {' and '.join(terms)}" if terms else line


def _checked(texts: Any) -> tuple[str, ...]:
    found = []
    for text in texts:
        try:
            parsed = Requirement(text)
        except (InvalidRequirement, RecursionError):
            raise UnsafeError(f"has a requirement that cannot be read: `{printable(text[:100])}`") from None
        # A requirement by URL is left out: the check of the wheel says if the image lacks it.
        if not parsed.url:
            found.append(str(parsed))
        if len(found) > _MOST_REQUIREMENTS:
            raise UnsafeError(f"has more than {_MOST_REQUIREMENTS} requirements")
    return tuple(dict.fromkeys(found))
