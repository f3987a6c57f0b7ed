"""Verbs on published images: inspect, verify."""

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
    check_progress,
    err,
    open_store,
    out,
    out_json,
    registry_options,
)
from imagebuilder.errors import InputError

if TYPE_CHECKING:
    from imagebuilder.attest.inspection import Inspection
    from imagebuilder.attest.published import Published
    from imagebuilder.attest.source import Source
    from imagebuilder.attest.verification import Check
    from imagebuilder.store import Store


@app.command()
def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE",
            help="registry.example/team/name:TAG, a recipe that was built, or its image's name.",
        ),
    ],
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show what an image is: pins, layers, the verdict of its smoke test, and what is attached to it."""
    from imagebuilder.attest import inspection
    from imagebuilder.attest.published import open_image
    from imagebuilder.registry import parse
    from imagebuilder.site import detect
    from imagebuilder.workflow import built_image

    where = open_store(store)
    local = "/" not in target or target.endswith((".yaml", ".yml"))
    image = built_image(target, where) if local else None
    if image is not None:
        found = inspection.from_store(target, image, where)
    elif local:
        raise InputError(
            f"`{target}` is not an image in the store",
            where="imagebuilder inspect",
            hint="an image of a registry is named as in registry.example/team/name:TAG",
        )
    else:
        host = parse(target).host
        options = registry_options(detect(site), host, plain_http=plain_http)
        found = inspection.from_registry(open_image(target, options))
    if as_json:
        out_json(dataclasses.asdict(found))
    else:
        _show(found)


@app.command()
def verify(
    target: Annotated[str, typer.Argument(metavar="IMAGE", help="registry.example/team/name:TAG or @DIGEST")],
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Public key (cosign.pub) that must have signed it all."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="A recipe, with its lock, that it must be made from."),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make it again from the attached recipe and lock, and compare.")
    ] = False,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Check a published image: signature, provenance, bills of materials, report, and that all agree."""
    from imagebuilder.attest import published, signing_keys, source, verification
    from imagebuilder.errors import TestFailure
    from imagebuilder.registry import parse
    from imagebuilder.site import detect

    check_progress(progress)
    where, surroundings = open_store(store), detect(site)
    public = signing_keys.load_public(key) if key else None
    own = source.of_recipe(recipe) if recipe else None
    options = registry_options(surroundings, parse(target).host, plain_http=plain_http)
    client = published.open_image(target, options)
    question = verification.Question(
        published=published.read(client, public), keyed=public is not None, own=own, store=where
    )
    result = verification.verify(question, client)
    checks = list(result.checks)
    if rebuild:
        checks.append(_rebuilt(result.source, question.published, where, site, progress))
    passed = all(check.status != "failed" for check in checks)
    if as_json:
        out_json(
            {
                "reference": result.reference,
                "digest": result.digest,
                "passed": passed,
                "checks": [dataclasses.asdict(check) for check in checks],
                "waivers": list(result.waivers),
            }
        )
    else:
        _show_checks(result.reference, checks, result.waivers, passed=passed)
    if not passed:
        raise typer.Exit(TestFailure.exit_code)


def _rebuilt(
    source: Source | None, image: Published, where: Store, site: Path | None, progress: str
) -> Check:
    """Make the image again; what keeps it from being made is an error, another digest a check that failed."""
    from imagebuilder.attest.rebuild import rebuild
    from imagebuilder.attest.verification import Check
    from imagebuilder.errors import LockError
    from imagebuilder.progress import shown
    from imagebuilder.site import detect

    name = "rebuild"
    if source is None:
        return Check(name=name, status="failed", detail="there is no recipe and lock to make it from")
    try:
        lock, _ = source.read()
    except LockError as error:
        return Check(name=name, status="failed", detail=error.problems[0].message)
    with shown(progress, sys.stderr) as live:
        surroundings = detect(site, distribution=lock.base.partition(":")[0])
        made = rebuild(source, where, surroundings, live)
    if made.digest == image.digest:
        return Check(name=name, status="passed", detail=f"the same digest, in {made.seconds:.1f} s")
    theirs = {layer.digest for layer in image.manifest.layers}
    same = sum(digest in theirs for digest in made.layers)
    detail = f"recipe and lock give {made.digest} here; {same} of {len(made.layers)} layers are the same"
    return Check(name=name, status="failed", detail=detail)


def _show_checks(reference: str, checks: list[Check], waivers: tuple[str, ...], *, passed: bool) -> None:
    from imagebuilder.yamlfile import printable

    out(f"{reference}")
    width = max(len(check.name) for check in checks)
    for check in checks:
        out(f"{check.name:{width}}  {check.status:11}  {printable(check.detail)}")
    if waivers:
        err(f"warning: it was pushed with these gates waived: {printable(', '.join(waivers))}")
    out("verified" if passed else "NOT verified")


def _show(found: Inspection) -> None:
    from imagebuilder.progress import human
    from imagebuilder.yamlfile import printable

    def row(name: str, text: str) -> None:
        if text:
            out(f"{name:10} {printable(text)}")

    row("image", f"{found.name} {found.version}".strip())
    row("digest", found.digest)
    row("size", f"{human(found.size)} in {len(found.layers)} layers")
    row("base", found.base)
    row("lock", found.lock)
    for tag in found.tags:
        row("tag", tag)
    for name, version in found.pins.items():
        row("pin", f"{name} {version}")
    row("report", f"{found.verdict}: {found.report}")
    row("signature", found.signature)
    for document in found.documents:
        row(
            "attached", f"{document.kind:11} {document.digest[:19]}" + ("  signed" if document.signed else "")
        )
    for other in found.others:
        row("attached", other)
    row("waived", ", ".join(found.waivers))
    for layer in found.layers:
        cells = f"{human(layer.size):>8}  {layer.digest[:19]}  {printable(layer.component):12}"
        out(f"  {cells}  {printable(layer.title)}")
