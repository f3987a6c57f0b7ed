"""Verbs on what changes: diff, update."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    RecipeFile,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    open_store,
    out,
    out_json,
)

if TYPE_CHECKING:
    from imagebuilder.image.diff import ChangedValue, ImageDifference

_DIFFERENT = 1


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recipe, a lock, or an image in the store.")],
    after: Annotated[str, typer.Argument(metavar="B", help="What to compare it with.")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the two differ, as `git diff` does.")
    ] = False,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Compare two images, built or not. Shows pins, packages, layers and the bytes that a push sends."""
    from imagebuilder.image import diff as diffs
    from imagebuilder.workflow import side

    where = open_store(store)
    found = diffs.compare(side(before, where), side(after, where))
    if as_json:
        out_json({**dataclasses.asdict(found), "same": found.same})
    else:
        show(found, before, after)
    if exit_code and not found.same:
        raise typer.Exit(_DIFFERENT)


@app.command()
def update(
    recipe_file: RecipeFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would change; write nothing.")
    ] = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Move pins to the newest versions that work together. Then locks again."""
    from imagebuilder.image import diff as diffs
    from imagebuilder.workflow import update_pins

    before, after, pins = update_pins(recipe_file, site, open_store(store), write=not dry_run, tools=tools)
    found = diffs.compare(before, after)
    if as_json:
        moved = {name: {"before": old, "after": new} for name, (old, new) in pins.items()}
        told = {"recipe": str(recipe_file), "written": not dry_run, "moved": moved, "same": found.same}
        out_json({**told, **dataclasses.asdict(found)})
        return
    for name, (old, new) in pins.items():
        out(f"{recipe_file}: {name}: {old} -> {new}")
    show(found, before.name, after.name)
    if dry_run:
        out("nothing was written")
    elif before != after or pins:
        out(f"next: imagebuilder build {recipe_file}")


def show(found: ImageDifference, before: str, after: str) -> None:
    """Print a difference for people."""
    from imagebuilder.core.progress import human

    if found.same:
        out("nothing differs")
        return
    _show_changes("pins", found.pins)
    _show_changes("packages", found.packages or ())
    if found.gone is None or found.new is None:
        out("layers: not compared, because a lock alone does not define them; give the recipe")
        return
    if found.gone or found.new:
        out("layers")
        for sign, parts in (("-", found.gone), ("+", found.new)):
            for part in parts:
                size = human(part.size) if part.measured or part.size else "?"
                out(f"  {sign} {part.title}  {size}")
    counted = "" if found.measured else " (not built yet: counted from the packages)"
    out(
        f"pushing {after} where {before} is sends {human(found.push_bytes)}{counted}; "
        f"{human(found.shared_bytes)} are shared"
    )


def _show_changes(title: str, changes: tuple[ChangedValue, ...]) -> None:
    if not changes:
        return
    out(title)
    for change in changes:
        before, after = _words(change)
        out(f"  {change.name}  {before or '(none)'} -> {after or '(gone)'}")


def _words(change: ChangedValue) -> tuple[str, str]:
    """Leave out the hashes if the versions already differ."""
    short = change.before.partition(" ")[0], change.after.partition(" ")[0]
    return short if short[0] != short[1] else (change.before, change.after)
