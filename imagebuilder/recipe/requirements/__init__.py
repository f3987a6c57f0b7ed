"""Read the requirement files that a recipe names, for one of its platforms.

Every kind of file is read into the same list of demands. Markers are evaluated for the image, never for this
host. Nothing in a file is executed, and no index is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from imagebuilder.errors import ConflictError, InputError, Problem
from imagebuilder.recipe.model import Recipe, RequirementFile, kind_of_file
from imagebuilder.recipe.places import Places
from imagebuilder.recipe.requirements import project, pylock, txt, uvlock
from imagebuilder.recipe.requirements.build import Package, read_package
from imagebuilder.recipe.requirements.demand import Demand, FileDemands, Found, Wrong, is_normal
from imagebuilder.recipe.requirements.source import Asked, Text, open_text

__all__ = ["Demand", "FileDemands", "Package", "is_normal", "read", "read_package"]

_READERS: Mapping[str, Callable[[Text, Asked], Iterator[Found]]] = {
    "requirements.txt": txt.read,
    "pyproject.toml": project.read,
    "uv.lock": uvlock.read,
    "pylock.toml": pylock.read,
}
_SHOWN = 50


def read(
    recipe: Recipe, folder: Path, places: Places, environment: Mapping[str, str]
) -> tuple[FileDemands, ...]:
    """Read the requirement files of a recipe, for one platform.

    Args:
        recipe: names the files.
        folder: the recipe's folder. The files' paths are relative to it.
        places: the lines of the recipe's keys, for messages.
        environment: the image's values of the variables in markers.

    Raises:
        InputError: lists every problem of all files, each with its line and a remedy.
        ConflictError: a file excludes the recipe's Python.

    """
    problems: list[Problem] = []
    made = []
    for number, entry in enumerate(recipe.requirement_files):
        named = number < len(recipe.requirements)
        place = places.of("requirements", number) if named else places.of("project")
        demands = []
        try:
            for found in _of_file(entry, folder, place, environment):
                if isinstance(found, Problem):
                    problems.append(found)
                else:
                    demands.append(found)
                if len(problems) > _SHOWN:
                    break
        except InputError as error:
            problems += error.problems
        made.append(FileDemands.of(entry.file, demands))
    if problems:
        raise InputError.of(problems[:_SHOWN])
    _require_python(recipe, made, places)
    return tuple(made)


def _of_file(
    entry: RequirementFile, folder: Path, place: str, environment: Mapping[str, str]
) -> Iterator[Found]:
    file = open_text(folder, entry.file, place)
    asked = Asked(
        place=place, environment=environment, extras=frozenset(entry.extras), groups=frozenset(entry.groups)
    )
    try:
        yield from _READERS[kind_of_file(entry.file)](file, asked)
    except Wrong as error:
        yield error.problem


def _require_python(recipe: Recipe, made: list[FileDemands], places: Places) -> None:
    """Refuse files that exclude the recipe's Python; of `3.13` they need to allow only one patch release."""
    minor = recipe.python_minor
    releases = [recipe.python] if recipe.python != minor else [f"{minor}.{number}" for number in range(60)]
    problems = [
        Problem(
            message=f'is "{recipe.python}", and {demand.place} asks for {demand.requirement}',
            where=places.of("python"),
            hint="change one of the two",
        )
        for file in made
        for demand in file.python
        if not any(demand.specifier.contains(release, prereleases=True) for release in releases)
    ]
    if problems:
        raise ConflictError.of(problems)
