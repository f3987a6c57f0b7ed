"""The verb that publishes: push, and the gates before it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    MoveTags,
    PlainHttp,
    PlatformName,
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
from imagebuilder.errors import GateError, ImagebuilderError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from imagebuilder.attest.bundle import Document
    from imagebuilder.attest.publish import Attached
    from imagebuilder.gates import Gate, Waiver
    from imagebuilder.progress import Progress
    from imagebuilder.registry import Client, PushResult
    from imagebuilder.site import Site
    from imagebuilder.store import ImageRecord, Store
    from imagebuilder.workflow import Last


_Image = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe that was built, or its image's name.")
]
_Repository = Annotated[str, typer.Argument(metavar="REPOSITORY", help="registry.example/team/name[:TAG]")]
_Tags = Annotated[list[str] | None, typer.Option("--tag", "-t", help="One more tag; may be repeated.")]
_OutOfStep = Annotated[
    bool, typer.Option("--out-of-step", help="Push the last image though its recipe or lock has changed.")
]
_Untested = Annotated[
    bool, typer.Option("--untested", help="Push without a passing smoke test of these very bytes.")
]
_UntestedOn = Annotated[
    list[str] | None,
    typer.Option(
        "--untested-on", metavar="PLATFORM", help="The same for one platform of several; may be repeated."
    ),
]
_AllowSecrets = Annotated[
    bool, typer.Option("--allow-secrets", help="Push what the search for secrets found something in.")
]
_AllowBakedKeys = Annotated[
    bool, typer.Option("--allow-baked-keys", help="Push with ssh keys in a layer, for closed networks.")
]
_Attach = Annotated[
    bool,
    typer.Option(
        "--attach/--no-attach", help="Attach bills of materials, provenance, report, recipe and lock."
    ),
]
_SignKey = Annotated[
    Path | None,
    typer.Option("--sign-key", metavar="FILE", help="Sign it, and what is attached, as cosign does."),
]


@app.command()
def push(
    image: _Image,
    repository: _Repository,
    tags: _Tags = None,
    move: MoveTags = False,
    out_of_step: _OutOfStep = False,
    untested: _Untested = False,
    untested_on: _UntestedOn = None,
    allow_secrets: _AllowSecrets = False,
    allow_baked_keys: _AllowBakedKeys = False,
    attach: _Attach = True,
    sign_key: _SignKey = None,
    platform: PlatformName = "",
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Push an image that passes every gate, for all its platforms; only what the registry lacks travels."""
    from imagebuilder import registry
    from imagebuilder.attest import signing_keys
    from imagebuilder.progress import shown
    from imagebuilder.site import detect
    from imagebuilder.workflow import last_images

    check_progress(progress)
    where = open_store(store)
    found = last_images(image, where, platform)
    if found is None:
        raise InputError(
            f"`{image}` is not an image in the store",
            where="imagebuilder push",
            hint="give the recipe that it is built from; `imagebuilder cache ls` lists what is there",
        )
    target = registry.parse(repository)
    surroundings = detect(site)
    flags = {
        "recipe": out_of_step,
        "smoke-test": untested,
        "secrets": allow_secrets,
        "baked-keys": allow_baked_keys,
    }
    waived = _waived(flags, untested_on or (), found)
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    whole = found.whole
    given, own = _tags(found, where)
    with shown(progress, sys.stderr) as live:
        waivers = _pass_gates(image, found, where, surroundings, waived, live)
        documents = {
            one.manifest: _documents(image, one, where, waivers[one.platform]) if attach else ()
            for one in whole.images
        }
        companions = _Companions(found=found, store=where, documents=documents, key=key)
        live.begin("push", f"{whole.name} to {repository}", "pushing", whole.size)
        result = registry.push(
            whole,
            where,
            repository,
            (*given, *(tags or ())),
            options=registry_options(surroundings, target.host, plain_http=plain_http),
            move=move,
            own=own,
            attach=companions.attach,
            advance=lambda count: live.advance("push", count),
        )
        live.end("push", f"{whole.name} to {repository}", "done", result.pushed_bytes)
    told = [waiver for one in whole.images for waiver in waivers[one.platform]]
    for waiver in told:
        err(f"warning: {waiver.flag}: {waiver.reason}")
    if as_json:
        out_json(_told(result, companions, told))
    else:
        _show(result, companions)


@dataclasses.dataclass(kw_only=True)
class _Companions:
    """What goes with the images, by digest; and, once `attach` was called, what came of it."""

    found: Last
    store: Store
    documents: Mapping[str, tuple[Document, ...]]
    key: EllipticCurvePrivateKey | None
    attached: list[Attached] = dataclasses.field(default_factory=list)

    @property
    def signed(self) -> int:
        """How many signatures were made."""
        return sum(item.signed for item in self.attached)

    def attach(self, client: Client) -> None:
        """Attach documents and signatures to each image, and a signature to what joins them."""
        from imagebuilder.attest import bundle, publish

        for one in self.found.images:
            subject = bundle.subject_of(one, self.store)
            self.attached.append(publish.attach(client, subject, self.documents[one.manifest], self.key))
        if self.found.index is not None:
            subject = bundle.subject_of(self.found.index, self.store)
            self.attached.append(publish.attach(client, subject, (), self.key))


def _waived(
    flags: Mapping[str, bool], untested_on: Sequence[str], found: Last
) -> Mapping[str, tuple[str, ...]]:
    """Say of each platform which gates may say no."""
    from imagebuilder.workflow import require_platform

    for name in untested_on:
        require_platform(name, found.platforms, "--untested-on")
    everywhere = tuple(gate for gate, is_waived in flags.items() if is_waived)
    return {
        name: (*everywhere, "smoke-test") if name in untested_on else everywhere for name in found.platforms
    }


def _tags(found: Last, store: Store) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the tags to push under, and those of them that say nothing but what is inside."""
    from imagebuilder.tags import of_platform
    from imagebuilder.workflow import labels

    whole = found.whole
    version = labels(found.images[0], store).get("org.opencontainers.image.version", "")
    given, own = whole.tags or (whole.tag, whole.lock[:12]), (version, whole.lock[:12])
    if found.is_part:
        # The plain tags are for all platforms together.
        (platform,) = found.platforms
        return tuple(of_platform(tag, platform) for tag in given), tuple(
            of_platform(tag, platform) for tag in own
        )
    return given, own


def _documents(
    target: str, image: ImageRecord, store: Store, waivers: tuple[Waiver, ...]
) -> tuple[Document, ...]:
    """Write what goes with an image; what was waived stands in its provenance."""
    from imagebuilder.attest import bundle, source

    told = tuple(f"{waiver.gate}: {waiver.reason}" for waiver in waivers)
    return bundle.documents(image, store, source.find(target, image, store), told, bundle.claimed_time())


def _pass_gates(
    target: str,
    found: Last,
    store: Store,
    site: Site,
    waived: Mapping[str, Collection[str]],
    live: Progress,
) -> Mapping[str, tuple[Waiver, ...]]:
    """Try every gate for every platform; what was waived is returned, and is to be told and recorded."""
    from imagebuilder import gates

    passed: dict[str, tuple[Waiver, ...]] = {}
    refused: list[ImagebuilderError] = []
    for image in found.images:
        try:
            waivers = gates.pass_all(_gates(target, image, store, site, live), waived[image.platform])
        except ImagebuilderError as error:
            if len(found.known) > 1:
                error.problems = tuple(
                    dataclasses.replace(item, message=f"on {image.platform}: {item.message}")
                    for item in error.problems
                )
            refused.append(error)
            continue
        if len(found.known) > 1:
            waivers = tuple(
                dataclasses.replace(item, reason=f"on {image.platform}: {item.reason}") for item in waivers
            )
        passed[image.platform] = waivers
    if len(refused) > 1:
        raise GateError.of([problem for error in refused for problem in error.problems])
    if refused:
        raise refused[0]
    return passed


def _gates(target: str, image: ImageRecord, store: Store, site: Site, live: Progress) -> tuple[Gate, ...]:
    """Search an image for secrets, and list what has to hold of it."""
    from imagebuilder import gates, leaks, registry
    from imagebuilder.gates import Gate
    from imagebuilder.workflow import require_in_step

    marks = leaks.marks(site, Path.home(), store.root)
    size = sum(layer.record.size for layer in image.layers)
    row, title = f"scan {image.platform}", f"secrets in {image.name}"
    if len(image.siblings) > 1:
        title += f" for {image.platform}"
    live.begin(row, title, "searching", size)
    scan = leaks.scan(image, store, marks, advance=lambda count: live.advance(row, count))
    live.end(row, title, "failed" if scan.findings else "done", scan.bytes)
    return (
        Gate(name="recipe", check=lambda: require_in_step(target, store, image.platform)),
        Gate(name="smoke-test", check=lambda: registry.require_proof(image, store)),
        Gate(name="secrets", check=lambda: gates.require_no_secrets(scan)),
        Gate(name="baked-keys", check=lambda: gates.require_no_baked_keys(scan)),
    )


def _told(result: PushResult, companions: _Companions, waivers: Sequence[Waiver]) -> dict[str, object]:
    """Tell programs what a push did."""
    images = companions.found.whole.images
    return {
        **dataclasses.asdict(result),
        "platforms": [{"platform": one.platform, "digest": one.manifest} for one in images],
        "artefacts": [artefact for item in companions.attached for artefact in item.artefacts],
        "signed": companions.signed,
        "waivers": [dataclasses.asdict(waiver) for waiver in waivers],
    }


def _show(result: PushResult, companions: _Companions) -> None:
    """Tell people what a push did."""
    from imagebuilder.progress import human

    images = companions.found.whole.images
    documents = companions.documents[images[-1].manifest]
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
    if companions.key is not None:
        out(f"signed  {companions.signed} new signatures")
    out(f"next:   imagebuilder verify {result.reference}" + (" --key FILE.pub" if companions.key else ""))
    if companions.found.index is not None:
        for one in images:
            out(f"        {one.platform}  {one.manifest}")
