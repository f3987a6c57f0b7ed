"""From a place in a recipe, as the resolvers name it, to the line where a person wrote it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from imagebuilder import yamlfile
from imagebuilder.errors import ImagebuilderError, Problem
from imagebuilder.yamlfile import Document

# `pins.nccl`, `pip[0]`, `python`; and `apt: name`, for a package by its name.
_STEP = re.compile(r"([a-z]+)(?:\.([a-z0-9_-]+)|\[([0-9]+)\])?")
_PACKAGE = re.compile(r"apt: ([a-z0-9+.-]+)")


@contextlib.contextmanager
def located(path: Path, name: str) -> Iterator[None]:
    """Give the problems that leave the block the recipe's file and line, where they name a key of it.

    Args:
        path: the recipe.
        name: its name, with which the resolvers begin a place: `cuda12-torch: pins.nccl`.

    """
    try:
        yield
    except ImagebuilderError as error:
        if any(_key(problem, name) for problem in error.problems):
            document = yamlfile.read(path)
            error.problems = tuple(_located(problem, name, document) for problem in error.problems)
        raise


def _located(problem: Problem, name: str, document: Document) -> Problem:
    key = _key(problem, name)
    steps = _steps(key, document) if key else ()
    return replace(problem, where=document.where(steps)) if steps else problem


def _key(problem: Problem, name: str) -> str:
    """Cut the recipe's name off a place; the base is named without it."""
    if problem.where == "base: image":
        return "base.image"
    if problem.where.startswith("base: "):
        return "base"
    key = problem.where.removeprefix(f"{name}: ")
    return key if key != problem.where else ""


def _steps(key: str, document: Document) -> tuple[str | int, ...]:
    if package := _PACKAGE.fullmatch(key):
        listed = document.data.get("apt", ())
        wanted = (i for i, item in enumerate(listed) if str(item).partition("=")[0] == package[1])
        return ("apt", *(index for index in (next(wanted, None),) if index is not None))
    step = _STEP.fullmatch(key)
    if step is None or step[1] not in document.data:
        return ()
    inner = step[2] or (int(step[3]) if step[3] else None)
    return (step[1],) if inner is None else (step[1], inner)
