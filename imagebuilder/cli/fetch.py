"""The verb `fetch`: download everything that a build needs, so that it works without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from imagebuilder.cli import completion
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    CacheName,
    Json,
    PlatformName,
    ProgressKind,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    check_progress,
    open_store,
    out,
)


@app.command()
def fetch(
    recipe_files: Annotated[
        list[Path],
        typer.Argument(metavar="RECIPE...", help="Recipes with locks.", autocompletion=completion.recipe),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Also copy the files into this folder, which becomes a store.",
        ),
    ] = None,
    platform: PlatformName = "",
    cache: CacheName = "",
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Download everything that build and test need. Afterwards both work without a network."""
    from imagebuilder.core.progress import human, shown
    from imagebuilder.fetch import locked as supply
    from imagebuilder.host.site import detect
    from imagebuilder.layers.package import copy_wheels
    from imagebuilder.smoke.data import are_needed, digits
    from imagebuilder.store import Store
    from imagebuilder.workflow import read_plans, sharing

    check_progress(progress)
    where = open_store(store)
    target = Store(output.absolute()) if output is not None else None
    locks = [(path, *each) for path in recipe_files for each in read_plans(path, platform)]
    rows: list[dict[str, Any]] = []
    for path, locked, plan in locks:
        surroundings = detect(site, distribution=locked.base.partition(":")[0], tools=tools, cache=cache)
        packages = (*(locked.image.layers if locked.image else ()), *locked.files)
        lacking = supply.absent(packages, where)
        with shown(progress, sys.stderr) as live:
            live.begin("fetch", str(path), "downloading", sum(package.size for package in lacking))
            supply.fetch(
                lacking,
                locked,
                where,
                surroundings,
                cache=sharing.open_cache(surroundings, live.note),
                advance=lambda _sha256, count, live=live: live.advance("fetch", count),  # type: ignore[misc]
                finished=lambda _sha256: None,
            )
            live.end("fetch", str(path), "done", sum(package.size for package in packages))
        data = [digits(where, surroundings)] if are_needed(locked.pins) else []
        if target is not None:
            supply.copy(packages, where, target)
            copy_wheels(plan.layers, where, target)
            for file in data:
                target.take_download(file, file.name)
        fetched, size = sum(p.size for p in lacking), sum(p.size for p in packages)
        row = {"recipe": str(path), "architecture": locked.architecture, "packages": len(packages)}
        rows.append({**row, "bytes": size, "fetched_bytes": fetched})
        if not as_json:
            out(f"{path}: {human(fetched)} fetched, {human(size)} in {len(packages)} packages")
    if as_json:
        from imagebuilder.cli import results

        recipes = tuple(results.recipes.FetchedRecipe(**row) for row in rows)
        answer(results.recipes.FetchResult(store=str((target or where).root), recipes=recipes))
    elif target is not None:
        out(f"wrote {target.root}; next: imagebuilder build --store {target.root} RECIPE")
