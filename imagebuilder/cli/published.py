"""Verbs on published images: inspect, verify."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    PlainHttp,
    PlatformName,
    ProgressKind,
    ProverKeys,
    SiteFile,
    StoreFolder,
    app,
    check_progress,
    load_provers,
    open_store,
    out,
    warn,
    write_page,
)

if TYPE_CHECKING:
    from imagebuilder.plan import Project
    from imagebuilder.publish.attest.inspection import IndexInspection, Inspection
    from imagebuilder.publish.attest.reports import AttachedReport
    from imagebuilder.publish.attest.verification import VerifyCheck
    from imagebuilder.publish.verify import Rebuild
    from imagebuilder.store import Store
    from imagebuilder.workflow.rebuild import Rebuilt
    from imagebuilder.workflow.source import RecipeSource


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
    signed_by: ProverKeys = None,
    html: HtmlFile = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Show an image. Its pins, layers, test result, signature and attached documents."""
    from imagebuilder.cli import pages
    from imagebuilder.host.site import detect
    from imagebuilder.publish.attest import inspection

    settings = partial(detect, site)
    found = inspection.inspect(
        target,
        open_store(store),
        settings,
        provers=load_provers(signed_by),
        platform=platform,
        plain_http=plain_http,
    )
    told = dataclasses.asdict(found) if isinstance(found, inspection.Inspection) else _page_values(found)
    write_page(html, lambda: pages.inspection(told))
    if as_json:
        from imagebuilder.cli import results

        answer(results.images.InspectResult.of(found))
    elif html is not None:
        return
    elif isinstance(found, inspection.Inspection):
        _show(found)
    else:
        _show_index(found)


def _page_values(found: IndexInspection) -> dict[str, object]:
    index = found.index
    summary = {"reference": index.reference, "digest": index.digest, "lock": index.lock}
    rows = [dataclasses.asdict(image) for image in found.images]
    return {**summary, "tags": found.tags, "signature": _signature(found), "platforms": rows}


def _signature(found: IndexInspection) -> str:
    return "present" if found.index.signed else "none"


def _show_index(found: IndexInspection) -> None:
    from imagebuilder.core.yamlfile import printable

    out(f"index      {found.index.digest}")
    for tag in found.tags:
        out(f"tag        {printable(tag)}")
    out(f"signature  {_signature(found)}")
    for image in found.images:
        out("")
        _show(image)


_Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="Public key (cosign.pub) that must have signed the image and its documents.",
    ),
]
_Recipe = Annotated[
    Path | None,
    typer.Option(
        "--recipe", metavar="FILE", help="The recipe, with its lock, that the image must be made from."
    ),
]
_SignedFor = Annotated[
    str,
    typer.Option(
        "--signed-for",
        metavar="REPOSITORY",
        help="For a copied image: the repository that signatures must name. [default: the image's own]",
    ),
]
_VerifiedBase = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="IMAGE",
        help="For an image that a Dockerfile made FROM one of imagebuilder: that one, to verify it too.",
    ),
]
_RebuildToo = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Build the image again from the attached recipe and lock, and compare. Needs --recipe if the "
        "image contains your own files: they are read from the folders that it names.",
    ),
]


@app.command()
def verify(
    target: Annotated[str, typer.Argument(metavar="IMAGE", help="registry.example/team/name:TAG or @DIGEST")],
    key: _Key = None,
    recipe: _Recipe = None,
    signed_for: _SignedFor = "",
    signed_by: ProverKeys = None,
    base: _VerifiedBase = "",
    platform: PlatformName = "",
    rebuild: _RebuildToo = False,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Check a published image. Signature, provenance, bills of materials and report have to agree."""
    from imagebuilder.errors import TestFailure
    from imagebuilder.host.site import detect
    from imagebuilder.publish import verify as verifying
    from imagebuilder.publish.attest import signing_keys
    from imagebuilder.workflow import read_locks, source

    check_progress(progress)
    where = open_store(store)
    request = verifying.VerifyRequest(
        target=target,
        key=signing_keys.load_public(key) if key else None,
        own=source.of_recipe(recipe) if recipe else None,
        copied=read_locks(recipe).copied if recipe and rebuild else None,
        signed_for=signed_for,
        provers=load_provers(signed_by),
        base=base,
        platform=platform,
        plain_http=plain_http,
    )
    folder = recipe.parent if recipe else Path()
    again = _rebuilding(where, site, progress, folder, plain_http=plain_http) if rebuild else None
    verified = verifying.verify(request, where, detect(site), again)
    if as_json:
        from imagebuilder.cli import results

        answer(results.images.VerifyResult.of(verified))
    else:
        for result in verified.images:
            _show_checks(result.reference, result.checks, result.waivers)
            _show_reports(result.reports)
        if verified.index is not None:
            _show_checks(verified.index.by_digest, verified.joint, ())
        out("verified" if verified.passed else "NOT verified")
    if not verified.passed:
        raise typer.Exit(TestFailure.exit_code)


def _rebuilding(store: Store, site: Path | None, progress: str, folder: Path, *, plain_http: bool) -> Rebuild:
    """Return the function that builds an image again and shows progress; `folder` is the recipe's."""
    from imagebuilder.core.progress import shown
    from imagebuilder.host.site import detect
    from imagebuilder.workflow.rebuild import Target, rebuild

    def run(
        source: RecipeSource, platform: str, distribution: str, project: Project, kept: str, zstd: bool
    ) -> Rebuilt:
        surroundings = detect(site, distribution=distribution)
        with shown(progress, sys.stderr) as live:
            target = Target(
                platform=platform,
                project=project,
                folder=folder,
                inputs=kept,
                plain_http=plain_http,
                zstd=zstd,
            )
            return rebuild(source, store, surroundings, live, target)

    return run


def _show_checks(reference: str, checks: Sequence[VerifyCheck], waivers: Sequence[str]) -> None:
    from imagebuilder.core.yamlfile import printable

    out(f"{reference}")
    width = max(len(check.name) for check in checks)
    for check in checks:
        out(f"{check.name:{width}}  {check.status:11}  {printable(check.detail)}")
    if waivers:
        warn(f"these gates were waived when the image was pushed: {printable(', '.join(waivers))}")


def _show_reports(reports: Sequence[AttachedReport]) -> None:
    """Print one line for each report, and whether it is the proof that the recipe demands."""
    from imagebuilder.core.yamlfile import printable

    for report in reports:
        out(f"{'proof' if not report.refusals else 'no proof':10} {printable(str(report))}")
        if report.refusals and report.verdict != "none":
            out(f"{'':10} {printable(', '.join(report.refusals))}")


def _show(found: Inspection) -> None:
    from imagebuilder.core.progress import human
    from imagebuilder.core.yamlfile import printable

    def row(name: str, text: str) -> None:
        if text:
            out(f"{name:10} {printable(text)}")

    row("image", f"{'derived from ' if found.on_top else ''}{found.name} {found.version}".strip())
    row("platform", found.platform)
    row("digest", found.digest)
    row("size", f"{human(found.size)} in {len(found.layers)} layers")
    row("age", str(found.age) if found.age else "not known: neither the image nor its registry has a date")
    row("base", found.base)
    row("lock", found.lock)
    for step in found.on_top:
        row("on top", step)
    for tag in found.tags:
        row("tag", tag)
    for name, version in found.pins.items():
        row("pin", f"{name} {version}")
    row("report", f"{found.verdict}: {found.report}")
    row("demands", found.policy)
    _show_reports(found.reports)
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
