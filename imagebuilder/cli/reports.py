"""Verbs on what training and proofs leave behind: report, compare-checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    JunitFile,
    StoreFolder,
    app,
    open_store,
    out,
    write_views,
)
from imagebuilder.errors import InputError


@app.command("report")
def report(
    target: Annotated[
        str,
        typer.Argument(
            metavar="REPORT|RECIPE", help="A JSON report, or what was tested: a recipe or an image's name."
        ),
    ],
    html: HtmlFile = None,
    junit: JunitFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show a smoke test's report again, or write it as a page or for CI. Exit code 0 whatever it says."""
    from imagebuilder.smoke import report as reports

    found = reports.read(_report_file(target, store))
    write_views(found, html, junit)
    if as_json:
        out(reports.dumps(found).rstrip("\n"))
    elif html is None and junit is None:
        for line in reports.lines(found):
            out(line)


def _report_file(target: str, store: Path | None) -> Path:
    """Find the report that a word stands for: a file, or the store's on a recipe's image."""
    from imagebuilder.workflow import built_image

    path = Path(target)
    if path.suffix == ".json" or (path.is_file() and path.suffix not in {".yaml", ".yml"}):
        return path
    where = open_store(store)
    image = built_image(target, where)
    if image is None:
        raise InputError(
            f"`{target}` is neither a report nor an image in the store",
            where="imagebuilder report",
            hint="give the JSON report that `smoke-test --report` wrote, or the recipe that was tested",
        )
    place = where.report(image.manifest)
    if not place.exists():
        raise InputError(
            "there is no report of its image as it is now",
            where=target,
            hint=f"run: imagebuilder smoke-test {target}",
        )
    return place
