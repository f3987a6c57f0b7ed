"""Read from pyproject.toml how a package is built (PEP 517 and 518), without executing anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError, Problem
from imagebuilder.recipe.requirements.demand import BY_PLACE, NAME_A_VERSION, Wrong
from imagebuilder.recipe.requirements.project import table
from imagebuilder.recipe.requirements.source import Text, open_text

# PEP 518's default for a file without [build-system].
_DEFAULT = {"requires": ["setuptools>=40.8.0"]}
_MOST, _LONGEST = 100, 500
_SYSTEM = "[build-system]"


@dataclass(frozen=True, kw_only=True)
class Package:
    """The user's own package, as its pyproject.toml describes it.

    Attributes:
        name: its normalised name.
        requires: its build requirements, sorted.
        version: its normalised version; "" if only the build knows it.

    """

    name: str
    requires: tuple[str, ...]
    version: str = ""


def read_package(folder: Path, path: str, place: str) -> Package:
    """Read the pyproject.toml of the user's own package.

    Args:
        folder: the recipe's folder.
        path: path of the file, relative to that folder.
        place: the line of the recipe that names it, for messages.

    Raises:
        InputError: lists everything that is wrong in the file, with its lines.

    """
    if not (folder / path).exists() and (folder / path).with_name("setup.py").exists():
        raise InputError(
            f"{printable(str(folder / path))} is missing, and a setup.py does not say what it is built with",
            where=place,
            hint="write it beside setup.py: [build-system] (requires, build-backend) and [project] (name)",
        )
    file = open_text(folder, path, place)
    try:
        data = file.toml()
        project = table(data.get("project", {}), "[project]", file)
        system = table(data.get("build-system", _DEFAULT), _SYSTEM, file)
    except Wrong as error:
        raise InputError.of([error.problem]) from None
    values = [*_name(project, file), *_version(project, file), *_requires(system, file)]
    if problems := [value for value in values if isinstance(value, Problem)]:
        raise InputError.of(problems)
    name, version, *requires = (value for value in values if isinstance(value, str))
    return Package(name=name, version=version, requires=tuple(sorted(set(requires))))


def _name(project: dict[str, Any], file: Text) -> Iterator[str | Problem]:
    try:
        yield canonicalize_name(str(project.get("name", "")), validate=True)
    except InvalidName:
        shown = printable(str(project.get("name", "")))
        message = f"`{shown}` is not the name of a package" if shown else "has no `name` under [project]"
        where = file.at(file.line_of_key("name", "[project]"))
        yield Problem(message=message, where=where, hint='write it as in name = "trainer"')


def _version(project: dict[str, Any], file: Text) -> Iterator[str | Problem]:
    version = project.get("version")
    try:
        yield "" if version is None else str(Version(str(version)))
    except InvalidVersion:
        message = f"`{printable(str(version))}` is not a version"
        where = file.at(file.line_of_key("version", "[project]"))
        yield Problem(message=message, where=where, hint='write it as in version = "1.2.0"')


def _requires(system: dict[str, Any], file: Text) -> Iterator[str | Problem]:
    values, line = system.get("requires"), file.line_of_key("requires", _SYSTEM)
    if not isinstance(values, list) or len(values) > _MOST:
        hint = 'write it as in requires = ["setuptools>=77"]'
        yield Problem(message=f"{_SYSTEM} has no list `requires`", where=file.at(line), hint=hint)
        return
    for value in values:
        text = value if isinstance(value, str) and len(value) <= _LONGEST else ""
        where = file.at(file.line_of(text, line) if text else line)
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            message = f"`{printable(str(value))}` is not a requirement"
            yield Problem(message=message, where=where, hint='write it as in "setuptools>=77"')
            continue
        if requirement.url:
            message = f"`{printable(requirement.name)}` {BY_PLACE}"
            yield Problem(message=message, where=where, hint=NAME_A_VERSION)
        else:
            yield str(requirement)
