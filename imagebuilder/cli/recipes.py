"""Verbs on recipes: init, schema, check, lock, plan, render."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    RecipeFile,
    SiteFile,
    app,
    complain,
    out,
    out_json,
)
from imagebuilder.errors import ImagebuilderError, InputError


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    recipe: Annotated[
        str, typer.Option("--recipe", help="Which shipped recipe to start from.")
    ] = "cuda12-torch",
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Write a recipe to start from, with its JSON Schema for the editor."""
    from imagebuilder.init import copy_templates

    for path in copy_templates(folder, recipe, force=force):
        out(f"wrote {path}")
    out(f"next: imagebuilder build {folder / recipe}.yaml")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a recipe."""
    from imagebuilder import recipe

    out_json(recipe.schema())


@app.command()
def check(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipes to check.")],
    as_json: Json = False,
) -> None:
    """Check recipes and their locks, offline: every problem of every file at once."""
    from imagebuilder import lock as locks
    from imagebuilder.workflow import check_recipe

    rows: list[dict[str, object]] = []
    worst = 0
    for path in recipes:
        locked = locks.path_for(path).exists()
        try:
            check_recipe(path)
        except ImagebuilderError as error:
            worst = max(worst, error.exit_code)
            problems = [dataclasses.asdict(problem) for problem in error.problems]
            rows.append(
                {"recipe": str(path), "ok": False, "exit_code": error.exit_code, "problems": problems}
            )
            if not as_json:
                complain(error)
        else:
            rows.append({"recipe": str(path), "ok": True, "locked": locked})
            if not as_json:
                out(f"{path}: ok, " + ("locked" if locked else "not locked yet"))
    if as_json:
        out_json(rows)
    raise typer.Exit(worst)


@app.command()
def lock(
    words: Annotated[
        list[str], typer.Argument(metavar="RECIPE [PIN...]", help="A recipe; after --upgrade, what to move.")
    ],
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", "-U", help="Move the pins or packages named after it; all without a name."),
    ] = False,
    site: SiteFile = None,
) -> None:
    """Resolve a recipe to exact bytes and write its lock beside it. What still fits stays as it was."""
    from imagebuilder import lock as locks
    from imagebuilder.workflow import lock_changes, lock_notes, update_lock

    # The recipe may stand before or after `--upgrade PIN`: it is the word that names a file.
    files = [word for word in words if word.endswith((".yaml", ".yml"))] or words[:1]
    names = [word for word in words if word not in files]
    if len(files) > 1 or (names and not upgrade):
        extra = files[1] if len(files) > 1 else names[0]
        raise InputError(
            f"`{extra}` is one word too many", where="imagebuilder lock", hint="names go after --upgrade"
        )
    path = Path(files[0])
    previous, made = update_lock(path, site, names if upgrade else None)
    if made == previous:
        out(f"{locks.path_for(path)} is current")
        return
    for line in lock_changes(previous, made):
        out(f"  {line}")
    for note in lock_notes(path, made):
        out(f"  note: {note}")
    compiled = f", {len(made.builds)} to compile" if made.builds else ""
    out(
        f"wrote {locks.path_for(path)}: {len(made.debs)} Debian packages, {len(made.wheels)} wheels{compiled}"
    )
    out(f"next: imagebuilder build {path}")


@app.command()
def plan(recipe_file: RecipeFile, as_json: Json = False) -> None:
    """Show the layers and the config that a build would make. Offline; needs a lock."""
    from imagebuilder.diff import packages_of
    from imagebuilder.progress import human
    from imagebuilder.workflow import read_plan

    _, planned = read_plan(recipe_file)
    layers = [
        {
            "kind": type(layer).__name__,
            "title": layer.title,
            "key": layer.key,
            "packages_bytes": sum(package.size for package in packages_of(layer)),
        }
        for layer in planned.layers
    ]
    if as_json:
        config = dataclasses.asdict(planned.config)
        out_json({"name": planned.name, "tag": planned.tag, "layers": layers, "config": config})
        return
    for layer in layers:
        size = int(str(layer["packages_bytes"]))
        out(f"{str(layer['key'])[:12]}  {human(size) if size else '':>8}  {layer['title']}")
    out(f"{len(layers)} layers, tag {planned.tag}")


@app.command()
def render(
    recipe_file: RecipeFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there. [default: print it]"),
    ] = None,
) -> None:
    """Write the plan as a Dockerfile that `docker buildx build` takes without imagebuilder. Needs a lock."""
    from imagebuilder import render as renderer
    from imagebuilder import share, textfile
    from imagebuilder.workflow import read_plan

    _, planned = read_plan(recipe_file)
    text = renderer.render(planned, share.template("Dockerfile.j2"))
    if output is None:
        out(text.rstrip("\n"))
    else:
        textfile.write(output, text)
        out(f"wrote {output}")
