"""The verb `catalog test`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    Json,
    ProgressKind,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    catalog_app,
    check_progress,
    err,
    open_store,
    out,
)
from imagebuilder.errors import InputError, TestFailure


@catalog_app.command("test")
def catalog_test(
    component: Annotated[
        str, typer.Argument(metavar="NAME[=VERSION]", help="The component, and the version to pin.")
    ],
    folder: Annotated[
        Path, typer.Option("--catalog", metavar="DIR", help="The folder with its file, NAME.yaml.")
    ] = Path("catalog"),
    beside: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VERSION", help="Another pin, which it needs; repeatable."),
    ] = None,
    base: Annotated[str, typer.Option("--base", help="The suite, as in a recipe.")] = "debian:trixie",
    python: Annotated[str, typer.Option("--python", help="The Python, as in a recipe.")] = "3.13",
    runtime: Annotated[str, typer.Option("--runtime", help="auto, docker or podman.")] = "auto",
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Lock, build and start a small image with one component, and show the version that its probe prints."""
    from imagebuilder.core.progress import shown
    from imagebuilder.workflow.trial import Wish, try_component

    check_progress(progress)
    name, _, version = component.partition("=")
    pins = dict(text.partition("=")[::2] for text in beside or ())
    if not all(pins.values()):
        raise InputError("write it as in --with cuda=12.8", where="--with")
    wish = Wish(name=name, version=version, folder=folder, beside=pins, base=base, python=python)
    with shown(progress, sys.stderr) as live:
        check = try_component(wish, site, open_store(store), live, runtime=cast("Any", runtime), tools=tools)
    row = check.evidence.get(name, {"pin": version, "nodes": {}})
    problems = tuple(
        f"{finding.node}: {finding.message}" if finding.node else finding.message
        for finding in check.findings
    )
    problems += tuple(f"not asked: {line}" for line in check.evidence.get("not asked", ()))
    passed = check.status == "passed" and bool(row["nodes"])
    if as_json:
        from imagebuilder.cli import results

        versions = dict(row["nodes"])
        answer(
            results.TriedComponent(
                name=name, pin=row["pin"], passed=passed, versions=versions, problems=problems
            )
        )
    else:
        for node, version_there in row["nodes"].items():
            out(f"{node}: {version_there or 'no answer'}")
        if passed:
            out(f"{name}: its probe prints a version that begins with the pinned {row['pin']}")
    if not passed:
        for problem in problems:
            err(f"error: {problem}")
        raise typer.Exit(TestFailure.exit_code)
