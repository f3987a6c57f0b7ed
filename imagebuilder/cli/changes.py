"""Verbs on what changes: diff, update."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli import completion
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    RecipeFile,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    open_store,
    out,
    write_page,
)

if TYPE_CHECKING:
    from imagebuilder.image.diff import ChangedValue, ImageDifference

_DIFFERENT = 1


@app.command()
def diff(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A recipe, a lock, or an image in the store.", autocompletion=completion.recipe
        ),
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help="What to compare it with.", autocompletion=completion.recipe)
    ],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the two differ, as `git diff` does.")
    ] = False,
    html: HtmlFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Compare two images, built or not. Shows pins, packages, layers and the bytes that a push sends."""
    from imagebuilder.cli import pages
    from imagebuilder.image import diff as diffs
    from imagebuilder.workflow import side

    where = open_store(store)
    found = diffs.compare(side(before, where), side(after, where))
    told = {**dataclasses.asdict(found), "same": found.same}
    write_page(html, lambda: pages.difference(told, before, after))
    if as_json:
        from imagebuilder.cli import results

        answer(results.recipes.DiffResult(same=found.same, difference=found))
    elif html is None:
        show(found, before, after)
    if exit_code and not found.same:
        raise typer.Exit(_DIFFERENT)


@app.command()
def update(
    recipe_file: RecipeFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would change; write nothing.")
    ] = False,
    only: Annotated[
        list[str],
        typer.Option(
            "--only", metavar="PIN", help="Move only this pin, or `debian` for Debian packages; repeatable."
        ),
    ] = [],  # noqa: B006 - typer copies it
    patch: Annotated[
        bool, typer.Option("--patch", help="Move pins only within their first two numbers: 2.10.0 to 2.10.1.")
    ] = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Move pins to the newest versions that work together. Then locks again."""
    from imagebuilder.image import diff as diffs
    from imagebuilder.workflow import update_pins

    updated = update_pins(
        recipe_file, site, open_store(store), write=not dry_run, tools=tools, only=only, patch=patch
    )
    before, after = updated.before, updated.after
    found = diffs.compare(before, after)
    if as_json:
        from imagebuilder.cli import results

        answer(
            results.recipes.UpdateResult(
                recipe=str(recipe_file),
                written=not dry_run,
                moved={
                    name: results.recipes.MovedPin(before=old, after=new)
                    for name, (old, new) in updated.moved.items()
                },
                left=updated.left,
                same=found.same,
                difference=found,
            )
        )
        return
    for name, (old, new) in updated.moved.items():
        out(f"{recipe_file}: {name}: {old} -> {new}")
    for name, reason in updated.left.items():
        out(f"{recipe_file}: {name}: stays, {reason}")
    show(found, before.name, after.name)
    if dry_run:
        out("nothing was written")
    elif before != after or updated.moved:
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
