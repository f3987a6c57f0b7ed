"""Verbs on what training and proofs leave behind: report, compare-checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    JunitFile,
    PlatformName,
    StoreFolder,
    app,
    open_store,
    out,
    out_json,
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
    platform: PlatformName = "",
    html: HtmlFile = None,
    junit: JunitFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show a smoke test's report again, or write it as a page or for CI. Exit code 0 whatever it says."""
    from imagebuilder.smoke import report as reports

    found = reports.read(_report_file(target, store, platform))
    write_views(found, html, junit)
    if as_json:
        out(reports.dumps(found).rstrip("\n"))
    elif html is None and junit is None:
        for line in reports.lines(found):
            out(line)


@app.command("compare-checkpoints")
def compare_checkpoints(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE FILE...", help="Of torch.save or safetensors; the first is the measure."
        ),
    ],
    atol: Annotated[
        float, typer.Option("--atol", min=0, help="How far numbers may be apart. Without: not one bit.")
    ] = 0.0,
    rtol: Annotated[
        float, typer.Option("--rtol", min=0, help="The same, in units of the other file's number.")
    ] = 0.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="KIND", help="parameter, buffer, optimizer or value; may be repeated."
        ),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option(
            "--buffer", metavar="PATTERN", help="A name that is a buffer, with * and ?; may be repeated."
        ),
    ] = None,
    most: Annotated[int, typer.Option("--most", min=0, help="How many differences of a kind to print.")] = 20,
    as_json: Json = False,
) -> None:
    """Say which tensors of checkpoints differ, and how far. Exit code 0: equal, 1: differ, 2: cannot say."""
    from imagebuilder.checkpoints import table
    from imagebuilder.checkpoints.compare import KINDS, Rules, compare
    from imagebuilder.checkpoints.files import opened
    from imagebuilder.checkpoints.tensor import Incomparable
    from imagebuilder.errors import TestFailure

    if len(files) < 2:
        raise Incomparable("give two checkpoints at least", where="imagebuilder compare-checkpoints")
    wrong = [word for word in only or () if word not in KINDS]
    if wrong:
        raise Incomparable(f"`{wrong[0]}` is none of {', '.join(KINDS)}", where="--only")
    rules = Rules(atol=atol, rtol=rtol, only=cast("Any", tuple(only or KINDS)), buffers=tuple(buffers or ()))
    with opened(files[0]) as first:
        found = []
        for path in files[1:]:
            with opened(path) as other:
                found.append(compare(first, other, rules))
    if as_json:
        out_json([table.as_json(comparison) for comparison in found])
    else:
        for comparison in found:
            for line in table.lines(comparison, most):
                out(line)
    if any(comparison.differences for comparison in found):
        raise typer.Exit(TestFailure.exit_code)


def _report_file(target: str, store: Path | None, platform: str = "") -> Path:
    """Find the report that a word stands for: a file, or the store's on a recipe's image."""
    from imagebuilder.workflow import built_image

    path = Path(target)
    if path.suffix == ".json" or (path.is_file() and path.suffix not in {".yaml", ".yml"}):
        return path
    where = open_store(store)
    image = built_image(target, where, platform)
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
