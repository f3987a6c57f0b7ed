"""`imagebuilder init`: write a recipe to start from, and the schema that its first line points editors at."""

from __future__ import annotations

from pathlib import Path

from imagebuilder.core import files, yamlfile
from imagebuilder.errors import InputError

SCHEMA = "recipe.schema.json"


def shipped(name: str) -> str:
    """Return the text of a shipped recipe. Its lock is left out, because the recipe is going to be changed.

    Raises:
        InputError: there is no such recipe.

    """
    known = {path.stem: path for path in files.resources("recipes").glob("*.yaml")}
    if name not in known:
        raise InputError(
            f"`{yamlfile.printable(name)}` is not a shipped recipe",
            hint=yamlfile.nearest(name, known) or f"shipped: {', '.join(sorted(known))}",
        )
    return known[name].read_text(encoding="utf-8")


def place(folder: Path, name: str, *, force: bool = False) -> Path:
    """Name the file of a new recipe.

    Raises:
        InputError: it exists already, and `force` does not allow to overwrite it.

    """
    path = folder / f"{name}.yaml"
    if path.exists() and not force:
        raise InputError("already exists", where=str(path), hint="--force overwrites it")
    return path


def write(path: Path, text: str, schema: str) -> tuple[Path, Path]:
    """Write a recipe and the schema beside it; an older schema is replaced, because it is generated.

    Args:
        path: of the recipe; its folder is created if it does not exist.
        text: the recipe.
        schema: the JSON Schema of recipes.

    Returns:
        The files written.

    Raises:
        InputError: the folder is not writable.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.with_name(SCHEMA).write_text(schema, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or path.parent),
            hint="name a folder that you may write to",
        ) from error
    return path, path.with_name(SCHEMA)
