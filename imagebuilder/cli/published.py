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
    PlatformName,
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
    from imagebuilder.attest.verification import Check, Verification
    from imagebuilder.attest.whole import Whole
    from imagebuilder.registry import Client, Options
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
    platform: PlatformName = "",
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show what an image is: pins, layers, the verdict of its smoke test, and what is attached to it."""
    from imagebuilder.attest import inspection, whole
    from imagebuilder.attest.published import open_image
    from imagebuilder.registry import parse
    from imagebuilder.site import detect
    from imagebuilder.workflow import built_image, require_platform

    where = open_store(store)
    local = "/" not in target or target.endswith((".yaml", ".yml"))
    image = built_image(target, where, platform) if local else None
    if image is not None:
        found = inspection.from_store(target, image, where)
    elif local:
        raise InputError(
            f"`{target}` is not an image in the store",
            where="imagebuilder inspect",
            hint="an image of a registry is named as in registry.example/team/name:TAG",
        )
    else:
        options = registry_options(detect(site), parse(target).host, plain_http=plain_http)
        client = open_image(target, options)
        index = whole.read(client)
        if index is not None and not platform:
            _inspect_whole(index, client, options, where, as_json=as_json)
            return
        if index is not None:
            client = whole.parts(index, client, options, platform)[platform]
        found = inspection.from_registry(client, where)
        require_platform(platform, [found.platform], target)
    if as_json:
        out_json(dataclasses.asdict(found))
    else:
        _show(found)


def _inspect_whole(index: Whole, client: Client, options: Options, store: Store, *, as_json: bool) -> None:
    from imagebuilder.attest import inspection, whole
    from imagebuilder.yamlfile import printable

    found = {
        name: inspection.from_registry(part, store)
        for name, part in whole.parts(index, client, options).items()
    }
    tags = whole.tags(index, client)
    signature = "present" if index.signed else "none"
    if as_json:
        summary = {"reference": index.reference, "digest": index.digest, "lock": index.lock, "tags": tags}
        rows = [dataclasses.asdict(item) for item in found.values()]
        out_json({**summary, "signature": signature, "platforms": rows})
        return
    out(f"index      {index.digest}")
    for tag in tags:
        out(f"tag        {printable(tag)}")
    out(f"signature  {signature}")
    for item in found.values():
        out("")
        _show(item)


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
    platform: PlatformName = "",
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
    from imagebuilder.attest import published, signing_keys, source, verification, whole
    from imagebuilder.errors import TestFailure
    from imagebuilder.registry import parse
    from imagebuilder.site import detect
    from imagebuilder.workflow import require_platform

    check_progress(progress)
    where, surroundings = open_store(store), detect(site)
    public = signing_keys.load_public(key) if key else None
    own = source.of_recipe(recipe) if recipe else None
    options = registry_options(surroundings, parse(target).host, plain_http=plain_http)
    client = published.open_image(target, options)
    index = whole.read(client, public)
    parts = {"": client} if index is None else whole.parts(index, client, options, platform)
    results: dict[str, Verification] = {}
    for name, part in parts.items():
        image = published.read(part, public)
        require_platform(platform, [image.platform], target)
        question = verification.Question(published=image, keyed=public is not None, own=own, store=where)
        result = verification.verify(question, part)
        if name not in {"", image.platform}:
            detail = f"the index says {name}, its config {image.platform}"
            wrong = verification.Check(name="platform", status="failed", detail=detail)
            result = dataclasses.replace(result, checks=(*result.checks, wrong))
        if rebuild:
            again = _rebuilt(result.source, image, where, site, progress)
            result = dataclasses.replace(result, checks=(*result.checks, again))
        results[name] = result
    joint = whole.checks(index, results, keyed=public is not None) if index and not platform else ()
    passed = all(result.passed for result in results.values()) and all(
        check.status != "failed" for check in joint
    )
    rows = [_told(result) for result in results.values()]
    if as_json and index is not None and not platform:
        checks = [dataclasses.asdict(check) for check in joint]
        summary = {"reference": index.reference, "digest": index.digest, "passed": passed}
        out_json({**summary, "checks": checks, "platforms": rows})
    elif as_json:
        out_json(rows[0])
    else:
        for result in results.values():
            _show_checks(result.reference, list(result.checks), result.waivers)
        if index is not None and joint:
            _show_checks(f"{client.reference.name}@{index.digest}", list(joint), ())
        out("verified" if passed else "NOT verified")
    if not passed:
        raise typer.Exit(TestFailure.exit_code)


def _told(result: Verification) -> dict[str, object]:
    return {
        "reference": result.reference,
        "digest": result.digest,
        "passed": result.passed,
        "checks": [dataclasses.asdict(check) for check in result.checks],
        "waivers": list(result.waivers),
    }


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
        lock, _ = source.read(image.platform)
    except LockError as error:
        return Check(name=name, status="failed", detail=error.problems[0].message)
    with shown(progress, sys.stderr) as live:
        surroundings = detect(site, distribution=lock.base.partition(":")[0])
        made = rebuild(source, where, surroundings, live, image.platform)
    if made.digest == image.digest:
        return Check(name=name, status="passed", detail=f"the same digest, in {made.seconds:.1f} s")
    theirs = {layer.digest for layer in image.manifest.layers}
    same = sum(digest in theirs for digest in made.layers)
    detail = f"recipe and lock give {made.digest} here; {same} of {len(made.layers)} layers are the same"
    return Check(name=name, status="failed", detail=detail)


def _show_checks(reference: str, checks: list[Check], waivers: tuple[str, ...]) -> None:
    from imagebuilder.yamlfile import printable

    out(f"{reference}")
    width = max(len(check.name) for check in checks)
    for check in checks:
        out(f"{check.name:{width}}  {check.status:11}  {printable(check.detail)}")
    if waivers:
        err(f"warning: it was pushed with these gates waived: {printable(', '.join(waivers))}")


def _show(found: Inspection) -> None:
    from imagebuilder.progress import human
    from imagebuilder.yamlfile import printable

    def row(name: str, text: str) -> None:
        if text:
            out(f"{name:10} {printable(text)}")

    row("image", f"{found.name} {found.version}".strip())
    row("platform", found.platform)
    row("digest", found.digest)
    row("size", f"{human(found.size)} in {len(found.layers)} layers")
    row("age", str(found.age) if found.age else "not known: the image has no date, nor does its registry")
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
