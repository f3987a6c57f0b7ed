"""`imagebuilder init`: copy a shipped recipe, as a starting point."""

from __future__ import annotations

import json
from pathlib import Path

from imagebuilder.core import files, yamlfile
from imagebuilder.errors import InputError, Problem
from imagebuilder.recipe import schema

SCHEMA = "recipe.schema.json"


def copy_templates(destination: Path, recipe_name: str, *, force: bool = False) -> tuple[Path, ...]:
    """Write a shipped recipe, and the schema that its first line points editors at.

    The lock is not copied, because the recipe is going to be changed.

    Args:
        destination: folder to write to; created if it does not exist.
        recipe_name: which of the shipped recipes.
        force: overwrite existing files.

    Returns:
        The files written.

    Raises:
        InputError: there is no such recipe, a file exists, or the folder is not writable.

    """
    known = {path.stem: path for path in files.resources("recipes").glob("*.yaml")}
    if recipe_name not in known:
        raise InputError(
            f"`{yamlfile.printable(recipe_name)}` is not a shipped recipe",
            hint=yamlfile.nearest(recipe_name, known) or f"shipped: {', '.join(sorted(known))}",
        )
    texts = {
        destination / f"{recipe_name}.yaml": known[recipe_name].read_text(encoding="utf-8"),
        destination / SCHEMA: schema_text(),
    }
    # The schema is generated: an older one is replaced without asking.
    in_the_way = [path for path in texts if path.exists() and path.name != SCHEMA]
    if in_the_way and not force:
        raise InputError.of(
            [
                Problem(message="already exists", where=str(path), hint="--force overwrites it")
                for path in in_the_way
            ]
        )
    try:
        destination.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or destination),
            hint="name a folder that you may write to",
        ) from error
    return tuple(texts)


def schema_text() -> str:
    """Return the recipe's JSON Schema as the text of a file."""
    return json.dumps(schema(), indent=2) + "\n"
