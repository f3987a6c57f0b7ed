"""The user's own package: what its pyproject.toml says of its build and of what it requires.

PEP 517 and 518 ([build-system]), PEP 621 ([project]), PEP 735 ([dependency-groups]). Nothing is executed.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import InputError, Problem
from imagebuilder.recipe.project import OwnPackage

NAME = "pyproject.toml"
# What a file without [build-system] means: PEP 518.
_DEFAULT = ("setuptools>=40.8.0",)
_LIMIT = 1 << 20
_LONGEST = 500  # characters of a requirement
_MOST = 1000  # requirements of one list
_DEEPEST = 20  # groups and extras within one another
# tomllib takes time with the square of a dotted key's length: 64 kB of `a.a.a` take 23 seconds.
_LONG_KEY = re.compile(r"""(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_SEE = "see packaging.python.org on pyproject.toml"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A requirement of the package, and its file and line."""

    requirement: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package as pyproject.toml has it.

    Attributes:
        name: as indexes write it.
        version: in normal form; "" where only the build knows it.
        requires: what it is built with, sorted.
        needs: what it depends on, with the extras and groups that were asked for.

    """

    name: str
    version: str
    requires: tuple[str, ...]
    needs: tuple[Needed, ...] = ()


def read(folder: Path, asked: OwnPackage, place: str) -> Package:
    """Read the pyproject.toml of a package.

    Args:
        folder: of the package.
        asked: what of it the image needs.
        place: where the recipe names it.

    Raises:
        InputError: everything that is wrong in it, with its lines.

    """
    reader = _Reader(folder / NAME, _text(folder, place), place)
    package = Package(
        name=reader.name(),
        version=reader.version(),
        requires=tuple(sorted({item.requirement for item in reader.requires()})),
        needs=tuple(dict.fromkeys(reader.needs(asked))),
    )
    if reader.problems:
        raise InputError.of(reader.problems)
    return package


def recorded(name: str, requires: Iterable[str], needs: Iterable[str]) -> Package:
    """Take from a lock what the file said, where it is not at hand."""
    return Package(
        name=name,
        version="",
        requires=tuple(requires),
        needs=tuple(Needed(requirement=text, place=NAME) for text in needs),
    )


def _text(folder: Path, place: str) -> str:
    path = folder / NAME
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path} is not a plain file", where=place)
            data = file.read(_LIMIT + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {NAME}",
            where=place,
            hint="write one with [build-system] (requires, build-backend) and [project] (name, version); "
            "a setup.py alone does not say what it is built with",
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where=place) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", where=str(path), hint="save it as UTF-8") from None
    if len(data) > _LIMIT:
        raise InputError(f"is larger than {_LIMIT} bytes", where=str(path), hint="is this the right file?")
    return text


class _Reader:
    """Reads one file, and collects what is wrong in it."""

    def __init__(self, path: Path, text: str, place: str) -> None:
        self.problems: list[Problem] = []
        self._path, self._text, self._place = path, text, place
        data = self._parsed()
        self._project = self._table(data, "project")
        self._system = (
            self._table(data, "build-system") if "build-system" in data else {"requires": [*_DEFAULT]}
        )
        self._groups = _by_name(self._table(data, "dependency-groups"))
        self._extras = _by_name(self._table(self._project, "optional-dependencies"))
        self._dynamic = self._project.get("dynamic", ())

    def name(self) -> str:
        found = self._project.get("name")
        try:
            return canonicalize_name(str(found or ""), validate=True)
        except InvalidName:
            what = (
                f"`{printable(str(found))}` is not a package's name"
                if found
                else "has no `name` in [project]"
            )
            self._note("name", what, 'write it as in name = "trainer"')
            return ""

    def version(self) -> str:
        found = self._project.get("version", "0" if "version" in self._dynamic else None)
        try:
            return "" if "version" in self._dynamic else str(Version(str(found)))
        except InvalidVersion:
            what = (
                "has no `version` in [project]"
                if found is None
                else f"`{printable(str(found))}` is no version"
            )
            self._note("version", what, 'write version = "1.2.0", or name it under `dynamic`')
            return ""

    def requires(self) -> Iterator[Needed]:
        return self._listed("requires", self._system.get("requires", []))

    def needs(self, asked: OwnPackage) -> Iterator[Needed]:
        wanted = {"dependencies", *(["optional-dependencies"] if asked.extras else [])}
        for key in sorted(wanted.intersection(self._dynamic)):
            message = f"`{key}` is dynamic: only running the build could tell it, and a lock runs nothing"
            self._note("dynamic", message, "write it into [project]")
        yield from self._listed("dependencies", self._project.get("dependencies", []))
        for kind, known, names in (
            ("extra", self._extras, asked.extras),
            ("group", self._groups, asked.groups),
        ):
            for name in names:
                if canonicalize_name(name) in known:
                    yield from self._within(kind, canonicalize_name(name), ())
                else:
                    there = f"there is {', '.join(sorted(known))}" if known else f"it has no {kind}s"
                    message = f"{self._path} has no {kind} `{printable(name)}`"
                    hint = nearest(name, known) or there
                    self.problems.append(Problem(message=message, where=self._place, hint=hint))

    def _within(self, kind: str, name: str, above: tuple[str, ...]) -> Iterator[Needed]:
        """Read an extra or a group, and those that it includes."""
        known = self._extras if kind == "extra" else self._groups
        if name in above or name not in known or len(above) > _DEEPEST:
            if name not in above:
                self._note(name, f"there is no {kind} `{printable(name)}` to include", _SEE)
            return
        for item in known[name] if isinstance(known[name], list) else [known[name]]:
            if kind == "group" and isinstance(item, dict) and list(item) == ["include-group"]:
                yield from self._within(kind, canonicalize_name(str(item["include-group"])), (*above, name))
                continue
            for found in self._listed(name, [item]):
                parsed = Requirement(found.requirement)
                if canonicalize_name(parsed.name) != canonicalize_name(str(self._project.get("name", ""))):
                    yield found
                for extra in parsed.extras if parsed.name == self._project.get("name") else ():
                    yield from self._within("extra", canonicalize_name(extra), (*above, name))

    def _listed(self, key: str, values: object) -> Iterator[Needed]:
        if not isinstance(values, list) or len(values) > _MOST:
            self._note(key, f"`{printable(key)}` is not a list of requirements", 'write ["numpy>=2"]')
            return
        for value in values:
            text = value if isinstance(value, str) and len(value) <= _LONGEST else ""
            try:
                found = Requirement(text)
            except (InvalidRequirement, RecursionError):
                message = f"`{printable(str(value))}` is not a requirement"
                self._note(key, message, 'write it as in "numpy>=2"', text)
                continue
            if found.url:
                hint = "name a version: a lock holds bytes, not places"
                self._note(key, f"`{printable(found.name)}` is requested by URL", hint, text)
                continue
            yield Needed(requirement=str(found), place=self._line(key, text))

    def _parsed(self) -> dict[str, Any]:
        reason, line = "", 1
        if match := _LONG_KEY.search(self._text):
            reason, line = "has a key of more than 32 parts", self._text.count("\n", 0, match.start()) + 1
        try:
            if not reason:
                return tomllib.loads(self._text)
        except RecursionError:
            reason = "is nested too deeply"
        except ValueError as error:
            reason = f"is not valid TOML: {printable(str(error))}"
        raise InputError(reason, where=f"{self._path}:{line}", hint=_SEE)

    def _table(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = data.get(key, {})
        if isinstance(found, dict):
            return found
        self._note(key, f"`{key}` is not a table", _SEE)
        return {}

    def _note(self, key: str, message: str, hint: str, value: str = "") -> None:
        self.problems.append(Problem(message=message, where=self._line(key, value), hint=hint))

    def _line(self, key: str, value: str = "") -> str:
        """Name the line of a value in quotes, or else of a key; the first where neither is found."""
        lines = self._text.split("\n")
        start = re.compile(rf"""\s*(?:\[+[^\]]*)?["']?{re.escape(key)}\b""")
        first = next((number for number, line in enumerate(lines) if start.match(line)), 0)
        quoted = (f'"{value}"', f"'{value}'") if value else ()
        after = (n for n in range(first, len(lines)) if any(text in lines[n] for text in quoted))
        return f"{self._path}:{next(after, first) + 1}"


def _by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {canonicalize_name(name): value for name, value in table.items()}
