"""The verb that publishes: push, and the gates before it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    PlainHttp,
    ProgressKind,
    SiteFile,
    StoreFolder,
    app,
    ask_password,
    check_progress,
    err,
    open_store,
    out,
    out_json,
    registry_options,
)
from imagebuilder.errors import InputError

if TYPE_CHECKING:
    from imagebuilder.attest.bundle import Document
    from imagebuilder.gates import Waiver
    from imagebuilder.progress import Progress
    from imagebuilder.registry import PushResult
    from imagebuilder.site import Site
    from imagebuilder.store import ImageRecord, Store


@app.command()
def push(
    image: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe that was built, or its image's name.")
    ],
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="registry.example/team/name[:TAG]")],
    tags: Annotated[
        list[str] | None, typer.Option("--tag", "-t", help="One more tag; may be repeated.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Let tags that stand for another image there stand for this one.")
    ] = False,
    out_of_step: Annotated[
        bool, typer.Option("--out-of-step", help="Push the last image though its recipe or lock has changed.")
    ] = False,
    untested: Annotated[
        bool, typer.Option("--untested", help="Push without a passing smoke test of these very bytes.")
    ] = False,
    allow_secrets: Annotated[
        bool, typer.Option("--allow-secrets", help="Push what the search for secrets found something in.")
    ] = False,
    allow_baked_keys: Annotated[
        bool, typer.Option("--allow-baked-keys", help="Push with ssh keys in a layer, for closed networks.")
    ] = False,
    attach: Annotated[
        bool,
        typer.Option(
            "--attach/--no-attach", help="Attach bills of materials, provenance, report, recipe and lock."
        ),
    ] = True,
    sign_key: Annotated[
        Path | None,
        typer.Option("--sign-key", metavar="FILE", help="Sign it, and what is attached, as cosign does."),
    ] = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Push an image that passes every gate; only what the registry lacks travels."""
    from imagebuilder import registry
    from imagebuilder.attest import bundle, publish, signing_keys
    from imagebuilder.progress import shown
    from imagebuilder.site import detect
    from imagebuilder.workflow import labels, last_image

    check_progress(progress)
    where = open_store(store)
    found = last_image(image, where)
    if found is None:
        raise InputError(
            f"`{image}` is not an image in the store",
            where="imagebuilder push",
            hint="give the recipe that it is built from; `imagebuilder cache ls` lists what is there",
        )
    target = registry.parse(repository)
    surroundings = detect(site)
    waived = {
        "recipe": out_of_step,
        "smoke-test": untested,
        "secrets": allow_secrets,
        "baked-keys": allow_baked_keys,
    }
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    attached: list[publish.Attached] = []
    with shown(progress, sys.stderr) as live:
        allowed = [name for name, is_waived in waived.items() if is_waived]
        waivers = _pass_gates(image, found, where, surroundings, allowed, live)
        documents = _documents(image, found, where, waivers) if attach else ()
        subject = bundle.subject_of(found, where)
        live.begin("push", f"{found.name} to {repository}", "pushing", found.size)
        result = registry.push(
            found,
            where,
            repository,
            (*(found.tags or (found.tag, found.lock[:12])), *(tags or ())),
            options=registry_options(surroundings, target.host, plain_http=plain_http),
            move=move,
            own=(labels(found, where).get("org.opencontainers.image.version", ""), found.lock[:12]),
            attach=lambda client: attached.append(publish.attach(client, subject, documents, key)),
            advance=lambda count: live.advance("push", count),
        )
        live.end("push", f"{found.name} to {repository}", "done", result.pushed_bytes)
    for waiver in waivers:
        err(f"warning: {waiver.flag}: {waiver.reason}")
    if as_json:
        told = {"waivers": [dataclasses.asdict(item) for item in waivers]}
        out_json({**dataclasses.asdict(result), **dataclasses.asdict(attached[0]), **told})
        return
    _show(result, documents, None if key is None else attached[0].signed)


def _documents(
    target: str, image: ImageRecord, store: Store, waivers: tuple[Waiver, ...]
) -> tuple[Document, ...]:
    """Write what goes with an image; what was waived stands in its provenance."""
    from imagebuilder.attest import bundle, source

    told = tuple(f"{waiver.gate}: {waiver.reason}" for waiver in waivers)
    return bundle.documents(image, store, source.find(target, image, store), told, bundle.claimed_time())


def _pass_gates(
    target: str, image: ImageRecord, store: Store, site: Site, waived: list[str], live: Progress
) -> tuple[Waiver, ...]:
    """Try every gate before a push; what was waived is returned, and is to be told and recorded."""
    from imagebuilder import gates, leaks, registry
    from imagebuilder.gates import Gate
    from imagebuilder.workflow import require_in_step

    marks = leaks.marks(site, Path.home(), store.root)
    size = sum(layer.record.size for layer in image.layers)
    live.begin("scan", f"secrets in {image.name}", "searching", size)
    scan = leaks.scan(image, store, marks, advance=lambda count: live.advance("scan", count))
    live.end("scan", f"secrets in {image.name}", "failed" if scan.findings else "done", scan.bytes)
    return gates.pass_all(
        (
            Gate(name="recipe", check=lambda: require_in_step(target, store)),
            Gate(name="smoke-test", check=lambda: registry.require_proof(image, store)),
            Gate(name="secrets", check=lambda: gates.require_no_secrets(scan)),
            Gate(name="baked-keys", check=lambda: gates.require_no_baked_keys(scan)),
        ),
        waived,
    )


def _show(result: PushResult, documents: tuple[Document, ...], signed: int | None) -> None:
    """Tell people what a push did; `signed` counts new signatures, None is without a key."""
    from imagebuilder.progress import human

    out(f"pushed  {result.reference}")
    out(f"tags    {', '.join(result.tags)}")
    for tag, digest in result.moved:
        out(f"moved   {tag}, which stood for {digest}")
    out(
        f"        {human(result.pushed_bytes)} in {result.pushed_blobs} blobs travelled, "
        f"{human(result.reused_bytes)} were there already, {result.seconds:.1f} s"
    )
    if documents:
        out(f"with    {', '.join(document.kind.name for document in documents)}")
    if signed is not None:
        out(f"signed  {signed} new signatures")
    out(f"next:   imagebuilder verify {result.reference}" + ("" if signed is None else " --key FILE.pub"))
