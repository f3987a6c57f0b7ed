"""The user's own package: what its pyproject.toml says of how it is built (PEP 517, PEP 518 and PEP 621)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError, Problem
from imagebuilder.recipe.requirements.demand import BY_PLACE, Wrong
from imagebuilder.recipe.requirements.source import Text, open_text

NAME = "pyproject.toml"
# What a project means that says nothing: PEP 518.
_DEFAULT = ("setuptools>=40.8.0",)
_MOST, _LONGEST = 100, 500


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package as pyproject.toml has it.

    Attributes:
        name: as indexes write it.
        version: in normal form; "" where only the build knows it.
        requires: what it is built with, in normal form.

    """

    name: str
    version: str
    requires: tuple[str, ...]


def read(folder: Path, source: str, place: str) -> Package:
    """Read the pyproject.toml of a package; nothing of it is executed.

    Args:
        folder: that the package's own is relative to.
        source: the package's folder.
        place: where that is named.

    Raises:
        InputError: everything that is wrong in it, with its lines.

    """
    try:
        file = open_text(folder, f"{source}/{NAME}", place)
    except InputError:
        if (folder / source / NAME).exists() or not (folder / source / "setup.py").exists():
            raise
        raise InputError(
            f"`{printable(source)}` has a setup.py and no {NAME}",
            where=place,
            hint=f"write a {NAME} beside it, with [build-system] (requires, build-backend) and [project]",
        ) from None
    try:
        data = file.toml()
        project, system = _table(data, "project", file), _table(data, "build-system", file)
    except Wrong as error:
        raise InputError.of([error.problem]) from None
    problems: list[Problem] = []

    def value(found: Callable[[], str]) -> str:
        try:
            return found()
        except Wrong as error:
            problems.append(error.problem)
            return ""

    name, version = value(lambda: _name(project, file)), value(lambda: _version(project, file))
    requires = tuple(value(partial(_requirement, item, file)) for item in _listed(system))
    if problems:
        raise InputError.of(problems)
    return Package(name=name, version=version, requires=tuple(sorted(set(requires))))


def _table(data: Mapping[str, Any], name: str, file: Text) -> Mapping[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise Wrong(file.at(1), f"[{name}] is not a table", "see the Python packaging user guide")
    return found


def _name(project: Mapping[str, Any], file: Text) -> str:
    try:
        return canonicalize_name(project["name"], validate=True)
    except KeyError:
        raise Wrong(file.at(1), "has no `name` under [project]", 'write it: name = "trainer"') from None
    except (InvalidName, TypeError):
        shown = printable(str(project["name"]))
        message = f"`{shown}` is not a package's name"
        raise Wrong(
            file.at(file.line_of_key("name", "[project]")), message, "use letters, digits and `-`"
        ) from None


def _version(project: Mapping[str, Any], file: Text) -> str:
    if "version" not in project:
        return ""
    try:
        return str(Version(project["version"]))
    except (InvalidVersion, TypeError):
        message = f"`{printable(str(project['version']))}` is not a version"
        raise Wrong(
            file.at(file.line_of_key("version", "[project]")), message, 'write it as in "1.2.0"'
        ) from None


def _listed(system: Mapping[str, Any]) -> tuple[object, ...]:
    """Give what [build-system] requires, or what the standard says where it is not there."""
    requires = system.get("requires", [] if system else list(_DEFAULT))
    return tuple(requires[:_MOST]) if isinstance(requires, list) else (requires,)


def _requirement(item: object, file: Text) -> str:
    place = file.at(file.line_of(str(item), file.line_of_key("requires", "[build-system]")))
    try:
        found = Requirement(item if isinstance(item, str) and len(item) < _LONGEST else "")
    except (InvalidRequirement, RecursionError):
        message = f"`{printable(str(item))}` is not a requirement"
        raise Wrong(place, message, 'write it as in "setuptools>=77"') from None
    if found.url:
        raise Wrong(place, f"`{printable(found.name)}` {BY_PLACE[0]}", BY_PLACE[1])
    return str(found)
