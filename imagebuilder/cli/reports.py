"""The verbs `report` and `compare-checkpoints`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    JunitFile,
    PlainHttp,
    PlatformName,
    ReportKey,
    SiteFile,
    StoreFolder,
    app,
    ask_password,
    err,
    open_store,
    out,
    write_views,
)
from imagebuilder.cli.engines import load_image
from imagebuilder.errors import ImagebuilderError, InputError, TestFailure

if TYPE_CHECKING:
    from imagebuilder.smoke.checkpoints import CompareRules, Comparison
    from imagebuilder.smoke.report import Report


_AttachTo = Annotated[
    str,
    typer.Option(
        "--attach",
        metavar="IMAGE",
        help="Attach the report to this image in a registry: registry.example/team/name, :TAG or @DIGEST.",
    ),
]


_FromLog = Annotated[
    str,
    typer.Option(
        "--from-log",
        metavar="FILE",
        help="Make the report from the log of a job that `smoke-test --as-job` wrote; `-` is standard input.",
    ),
]


@app.command("report")
def report(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[REPORT|RECIPE]", help="A JSON report, or the recipe or image that was tested."
        ),
    ] = "",
    platform: PlatformName = "",
    from_log: _FromLog = "",
    html: HtmlFile = None,
    junit: JunitFile = None,
    attach: _AttachTo = "",
    sign_key: ReportKey = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show the report of a smoke test again, or attach it. Exit code 0 even if the test failed."""
    from imagebuilder.host.site import detect
    from imagebuilder.publish import attach as attaching
    from imagebuilder.publish.attest import signing_keys
    from imagebuilder.smoke import report as reports

    if sign_key and not attach:
        raise InputError("--sign-key has no effect without --attach", where="imagebuilder report")
    if bool(target) == bool(from_log):
        raise InputError(
            "give a report, the recipe or image that was tested, or a job's log with --from-log",
            where="imagebuilder report",
        )
    if from_log:
        found = _from_log(from_log)
        data = reports.dumps(found).encode()
    else:
        file = _report_file(target, store, platform)
        found, data = reports.read(file), reports.read_bytes(file)
    write_views(found, html, junit)
    if attach:
        key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
        request = attaching.AttachRequest(image=attach, key=key, plain_http=plain_http)
        made = attaching.attach(data, request, open_store(store), detect(site))
        err(made.told)
    if as_json:
        answer(found)
    elif html is None and junit is None and not attach:
        for line in reports.lines(found):
            out(line)


def _from_log(name: str) -> Report:
    from imagebuilder.smoke import joblog

    if name == "-":
        return joblog.read(sys.stdin.buffer, "standard input")
    try:
        with Path(name).open("rb") as file:
            return joblog.read(file, name)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=name) from None


_Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE FILE...", help="Files of torch.save or safetensors; each is compared with the first."
    ),
]
_Atol = Annotated[
    float, typer.Option("--atol", min=0, help="Absolute tolerance. [default: equal bit for bit]")
]
_Rtol = Annotated[float, typer.Option("--rtol", min=0, help="Tolerance relative to the other file's number.")]
_Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="KIND", help="parameter, buffer, optimizer or value; may be repeated."),
]
_Buffers = Annotated[
    list[str] | None,
    typer.Option(
        "--buffer", metavar="PATTERN", help="Names of buffers, with * and ? as wildcards; may be repeated."
    ),
]
_Most = Annotated[int, typer.Option("--most", min=0, help="How many differences of each kind to print.")]
_Image = Annotated[
    str, typer.Option("--image", metavar="RECIPE|IMAGE", help="Compare in a container of this image.")
]
_Python = Annotated[
    Path | None, typer.Option("--python", metavar="PATH", help="Compare with this Python, which needs torch.")
]


@app.command("compare-checkpoints")
def compare_checkpoints(
    files: _Files,
    atol: _Atol = 0.0,
    rtol: _Rtol = 0.0,
    only: _Only = None,
    buffers: _Buffers = None,
    most: _Most = 20,
    image: _Image = "",
    python: _Python = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Say which tensors differ, and by how much. Exit code 0: equal, 1: different, 2: cannot compare."""
    from imagebuilder.smoke import checkpoints
    from imagebuilder.smoke.checkpoints import KINDS, CompareRules, Incomparable

    if len(files) < 2:
        raise Incomparable("give at least two checkpoints", where="imagebuilder compare-checkpoints")
    if image and python:
        raise Incomparable("give --image or --python, not both", where="--python")
    wrong = [word for word in only or () if word not in KINDS]
    if wrong:
        raise Incomparable(f"`{wrong[0]}` is unknown: choose {', '.join(KINDS)}", where="--only")
    rules = CompareRules(
        atol=atol, rtol=rtol, only=cast("Any", tuple(only or ())), buffers=tuple(buffers or ())
    )
    if image:
        comparisons = _compare_inside(files, rules, image, store)
    else:
        comparisons = checkpoints.compare_here(files, rules, python)
    pairs = [
        ((files[0], other), comparison) for other, comparison in zip(files[1:], comparisons, strict=True)
    ]
    if as_json:
        from imagebuilder.cli import results

        rows = (
            results.images.ComparedCheckpoints(
                first=str(first), other=str(other), equal=not comparison.differences, comparison=comparison
            )
            for (first, other), comparison in pairs
        )
        answer(results.images.CompareResult(pairs=tuple(rows)))
    else:
        for pair, comparison in pairs:
            for line in checkpoints.lines(pair, comparison, most):
                out(line)
    if any(result.differences for result in comparisons):
        raise typer.Exit(TestFailure.exit_code)


def _compare_inside(
    files: list[Path], rules: CompareRules, target: str, store: Path | None
) -> tuple[Comparison, ...]:
    """Compare in a container: of a recipe's image, which is loaded first, or of an image in the engine.

    Raises:
        Incomparable: there is no answer, for any reason; the verb then exits with 2.

    """
    from imagebuilder.host.site import detect
    from imagebuilder.smoke.checkpoints import Incomparable, compare_inside
    from imagebuilder.smoke.engine import connect
    from imagebuilder.workflow import built_image

    try:
        where = open_store(store)
        found = built_image(target, where)
        reference = load_image(found, where, detect()) if found else target
        with connect("auto") as engine:
            return compare_inside(files, rules, engine, reference)
    except ImagebuilderError as error:
        raise Incomparable.of(error.problems) from error


def _report_file(target: str, store: Path | None, platform: str = "") -> Path:
    """Find the report that an argument names: a file, or the store's report on an image."""
    from imagebuilder.workflow import built_image, named

    word = named(target)
    if word.kind == "report" or (word.path.is_file() and not word.is_recipe):
        return word.path
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
            "the store has no report on the current image",
            where=target,
            hint=f"run: imagebuilder smoke-test {target}",
        )
    return place
