"""What all verbs share: the application, options that several have, and saying things."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder import __version__
from imagebuilder.errors import ImagebuilderError, InputError

if TYPE_CHECKING:
    from imagebuilder.smoke.report import Report
    from imagebuilder.store import Store

app = typer.Typer(
    name="imagebuilder",
    help="Container images for distributed training: from a pinned recipe to a proven push.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="Look after the store of blobs, layers and downloads.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

RecipeFile = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, e.g. recipes/cuda12-torch.yaml.")
]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", metavar="FILE", help="Proxies, CA, indexes and mirrors, over what the host says."),
]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Store to use. [default: the user's cache]")
]
ProgressKind = Annotated[str, typer.Option("--progress", metavar="KIND", help="auto, table, lines or json.")]
PlatformName = Annotated[
    str,
    typer.Option(
        "--platform", metavar="NAME", help="Of a recipe for several: only this one, as linux/arm64."
    ),
]
PlainHttp = Annotated[
    bool,
    typer.Option("--plain-http", help="Allow plain HTTP to a registry elsewhere, if it does not speak TLS."),
]
MoveTags = Annotated[
    bool, typer.Option("--move", help="Let tags that stand for another image there stand for this one.")
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML page.")
]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML, for CI.")
]
ToolsPlace = Annotated[
    str,
    typer.Option(
        "--tools",
        metavar="WHERE",
        help="Where apt and mmdebstrap run: host, container, or auto (container if this host lacks them).",
    ),
]
Locked = Annotated[
    bool,
    typer.Option("--locked", help="Resolve nothing: fail where the lock is missing or out of step."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; twice: all.")] = 0,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown("%(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    if verbose == 0:
        # It warns of every retry; what comes of them is said in the end, in our own words.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    if version:
        out(f"imagebuilder {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        out(context.get_help())


def check_progress(kind: str) -> None:
    if kind not in {"auto", "table", "lines", "json"}:
        raise InputError(f"`{kind}` is none of auto, table, lines, json", where="--progress")


def open_store(folder: Path | None) -> Store:
    from imagebuilder.store import Store

    return Store(folder) if folder is not None else Store.default()


def write_views(found: Report, html: Path | None, junit: Path | None) -> None:
    """Write the views that were asked for."""
    from imagebuilder.core import files
    from imagebuilder.smoke.views import junit as test_cases
    from imagebuilder.smoke.views import page

    for path, render in ((html, page.render), (junit, test_cases.render)):
        if path is not None:
            files.write(path, render(found))
            err(f"wrote {path}")


def complain(error: ImagebuilderError) -> None:
    for problem in error.problems:
        err(f"error: {problem}")


def ask_password() -> str:
    """Give the password of a signing key: COSIGN_PASSWORD, as cosign has it, or what a person types."""
    given = os.environ.get("COSIGN_PASSWORD")
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise InputError(
            "the signing key has a password, and nobody is there to be asked",
            where="--sign-key",
            hint="set COSIGN_PASSWORD",
        )
    return str(typer.prompt("password of the signing key", hide_input=True, err=True))


def out_json(value: object) -> None:
    out(json.dumps(value, indent=2))


def out(text: str) -> None:
    typer.echo(shown(text))


def err(text: str) -> None:
    typer.echo(shown(text), err=True)


def warn(text: str) -> None:
    err(f"warning: {text}")


def shown(text: str) -> str:
    """Make text safe for a terminal: what packages, registries and logs say may hold its escape codes.

    The last line of defence: messages escape what they quote where they are made. Lines stay lines.
    """
    if text.isprintable():
        return text
    keep = "\n\t"
    return "".join(
        char if char in keep or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


class _Shown(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))
