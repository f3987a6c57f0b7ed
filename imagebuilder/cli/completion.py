"""What the shell completes after a verb: recipes, checks, components and targets, without loading much.

`imagebuilder --install-completion` sets up the shell. Completion must be quick and must not print: an error
in it means that nothing is completed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

_MOST = 500  # entries of a folder that are looked at


def _careful(candidates: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Keep what begins with the typed text; complete nothing after an error."""

    def complete(incomplete: str) -> list[str]:
        try:
            return sorted(word for word in candidates(incomplete) if word.startswith(incomplete))
        except Exception:  # noqa: BLE001  (it would be printed into the command line)
            return []

    return complete


@_careful
def recipe(incomplete: str) -> Iterable[str]:
    """Complete a recipe: folders and YAML files, and the recipes of a folder `recipes`."""
    folder = incomplete.rpartition("/")[0]
    start = f"{folder}/" if "/" in incomplete else ""
    yield from _files(Path(start or "."), start)
    if not start and Path("recipes").is_dir():
        yield from (f"recipes/{name}" for name in _files(Path("recipes"), ""))


def _files(folder: Path, start: str) -> Iterable[str]:
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST), entries, strict=False):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield f"{start}{entry.name}/"
            elif entry.name.endswith((".yaml", ".yml")):
                yield f"{start}{entry.name}"


@_careful
def check(_incomplete: str) -> Iterable[str]:
    """Complete a check of the smoke test."""
    folder = Path(__file__).parent.parent / "smoke/checks"
    return (path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py"))


@_careful
def component(_incomplete: str) -> Iterable[str]:
    """Complete a component, shipped or beside the recipes here, for `NAME=VERSION`."""
    folders = (Path(__file__).parent.parent / "catalog", Path("catalog"), Path("recipes/catalog"))
    return {f"{path.stem}=" for folder in folders for path in islice(folder.glob("*.yaml"), _MOST)}


@_careful
def target(_incomplete: str) -> Iterable[str]:
    """Complete a target of `launch`."""
    from imagebuilder.launch import targets

    return targets.names()


@_careful
def shipped(_incomplete: str) -> Iterable[str]:
    """Complete a recipe that comes with this program."""
    from imagebuilder.core import files

    return (path.stem for path in files.resources("recipes").glob("*.yaml"))
