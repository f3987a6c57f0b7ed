"""What all verbs share: the application, common options, and printing."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder import __version__
from imagebuilder.cli import completion
from imagebuilder.cli.answer import Verbs
from imagebuilder.errors import ImagebuilderError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from imagebuilder.smoke.report import Report
    from imagebuilder.store import Store

app = Verbs(
    name="imagebuilder",
    help="Build, test and push container images for distributed training.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cache_app = Verbs(help="List, check and clean the store on this host.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
catalog_app = Verbs(help="Try components that a folder of catalog files describes.", no_args_is_help=True)
app.add_typer(catalog_app, name="catalog")

RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe, e.g. recipes/cuda12-torch.yaml.",
        autocompletion=completion.recipe,
    ),
]
SiteFile = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="FILE",
        help="Settings for proxies, CA, indexes and mirrors, instead of this host's.",
    ),
]
CacheName = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="REPOSITORY",
        help="Take layers and packages from this repository, registry.example/team/cache. "
        "[default: `cache:` of the site file, or IMAGEBUILDER_CACHE]",
    ),
]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Store to use. [default: the user's cache]")
]
ProgressKind = Annotated[str, typer.Option("--progress", metavar="KIND", help="auto, table, lines or json.")]
PlatformName = Annotated[
    str,
    typer.Option(
        "--platform",
        metavar="NAME",
        help="Only this platform of a recipe that has several, e.g. linux/arm64.",
    ),
]
PlainHttp = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Allow plain HTTP to a registry on another host, if it does not speak TLS."
    ),
]
MoveTags = Annotated[
    bool, typer.Option("--move", help="Move tags that point to another image in the registry.")
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one HTML page, which needs no other file."),
]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML, for CI.")
]
ProverKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--signed-by",
        metavar="FILE",
        help="Public key of a host that tests images, which may have signed reports; may be repeated.",
    ),
]
ReportKey = Annotated[
    Path | None,
    typer.Option("--sign-key", metavar="FILE", help="With --attach: sign the report, as cosign does."),
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
    typer.Option("--locked", help="Resolve nothing: fail if the lock is missing or out of date."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON; `imagebuilder schema --json VERB` describes it.")
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, help="Print more; twice prints everything.")
    ] = 0,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown("%(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    if verbose == 0:
        # It warns of every retry. If all of them fail, our own error says so.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    if version:
        out(f"imagebuilder {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        out(context.get_help())


def check_progress(kind: str) -> None:
    if kind not in {"auto", "table", "lines", "json"}:
        raise InputError(f"`{kind}` is unknown: choose auto, table, lines or json", where="--progress")


def open_store(folder: Path | None) -> Store:
    from imagebuilder.store import Store

    return Store(folder) if folder is not None else Store.default()


def write_views(found: Report, html: Path | None, junit: Path | None) -> None:
    """Write the report as an HTML page and as JUnit XML, if asked for."""
    from imagebuilder.core import files
    from imagebuilder.smoke.views import junit as test_cases
    from imagebuilder.smoke.views import page

    for path, render in ((html, page.render), (junit, test_cases.render)):
        if path is not None:
            files.write(path, render(found))
            err(f"wrote {path}")


def write_page(path: Path | None, render: Callable[[], str]) -> None:
    """Write an HTML page, if asked for."""
    from imagebuilder.core import files

    if path is not None:
        files.write(path, render())
        err(f"wrote {path}")


def load_provers(files: list[Path] | None) -> dict[str, EllipticCurvePublicKey]:
    """Read the public keys of hosts that test images, by the path given."""
    from imagebuilder.publish.attest import signing_keys

    return {str(path): signing_keys.load_public(path) for path in files or ()}


def complain(error: ImagebuilderError) -> None:
    for problem in error.problems:
        err(f"error: {problem}")


def ask_password() -> str:
    """Read the password of a signing key from COSIGN_PASSWORD, as cosign does, or from the terminal."""
    given = os.environ.get("COSIGN_PASSWORD")
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise InputError(
            "the signing key needs a password, and there is no terminal to ask for it",
            where="--sign-key",
            hint="set COSIGN_PASSWORD",
        )
    return str(typer.prompt("password of the signing key", hide_input=True, err=True))


def out(text: str) -> None:
    typer.echo(shown(text))


def err(text: str) -> None:
    typer.echo(shown(text), err=True)


def warn(text: str) -> None:
    err(f"warning: {text}")


def shown(text: str) -> str:
    """Escape control characters, except newlines and tabs, so that printed text cannot control the terminal.

    Text from packages, registries and logs may contain terminal escapes. Messages already escape what they
    quote; this is the last line of defence.
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
