"""The verb `push`, with the options that waive its gates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli import completion
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    CacheName,
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
    open_store,
    out,
    warn,
)

if TYPE_CHECKING:
    from imagebuilder.publish.push import Pushed


_Image = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe that was built, or its image's name.",
        autocompletion=completion.recipe,
    ),
]
_Repository = Annotated[str, typer.Argument(metavar="REPOSITORY", help="registry.example/team/name[:TAG]")]
_Tags = Annotated[list[str] | None, typer.Option("--tag", "-t", help="Another tag; may be repeated.")]
_OutOfStep = Annotated[
    bool, typer.Option("--out-of-step", help="Push the last image although its recipe or lock has changed.")
]
_Untested = Annotated[
    bool, typer.Option("--untested", help="Push without a passing smoke test of this image.")
]
_UntestedOn = Annotated[
    list[str] | None,
    typer.Option(
        "--untested-on",
        metavar="PLATFORM",
        help="Push this platform's image without a passing smoke test; may be repeated.",
    ),
]
_Candidate = Annotated[
    bool,
    typer.Option(
        "--candidate",
        help="Push an image whose proof is still to come, under the tag candidate-DIGEST only.",
    ),
]
_AllowBakedKeys = Annotated[
    bool, typer.Option("--allow-baked-keys", help="Push with ssh keys in a layer, for closed networks.")
]
_Attach = Annotated[
    bool,
    typer.Option(
        "--attach/--no-attach",
        help="Attach bills of materials, provenance, report, recipe and lock to the image.",
    ),
]
_Sources = Annotated[
    bool,
    typer.Option(
        "--sources",
        help="Also keep every package, wheel and source of the lock beside the image: `verify --rebuild` "
        "then needs no other place.",
    ),
]
_SignKey = Annotated[
    Path | None,
    typer.Option("--sign-key", metavar="FILE", help="Sign the image and its documents, as cosign does."),
]
_CachePush = Annotated[
    bool,
    typer.Option(
        "--cache-push",
        help="With --sign-key: sign what the search for secrets found, and put it into the cache.",
    ),
]


_Compression = Annotated[
    str,
    typer.Option(
        "--compression",
        metavar="gzip|zstd",
        help="How to pack the layers, instead of as the recipe says (`compression:`; gzip by default).",
    ),
]


@app.command()
def push(
    image: _Image,
    repository: _Repository,
    tags: _Tags = None,
    candidate: _Candidate = False,
    move: MoveTags = False,
    out_of_step: _OutOfStep = False,
    untested: _Untested = False,
    untested_on: _UntestedOn = None,
    allow_baked_keys: _AllowBakedKeys = False,
    attach: _Attach = True,
    sources: _Sources = False,
    compression: _Compression = "",
    sign_key: _SignKey = None,
    platform: PlatformName = "",
    plain_http: PlainHttp = False,
    cache: CacheName = "",
    cache_push: _CachePush = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Push an image that passed its test. Sends only what the registry lacks."""
    from imagebuilder.core.progress import shown
    from imagebuilder.host.site import detect
    from imagebuilder.publish import push as publishing
    from imagebuilder.publish.attest import signing_keys

    check_progress(progress)
    where = open_store(store)
    flags = {"recipe": out_of_step, "smoke-test": untested, "baked-keys": allow_baked_keys}
    request = publishing.PushRequest(
        target=image,
        repository=repository,
        platform=platform,
        tags=tuple(tags or ()),
        move=move,
        waived=frozenset(gate for gate, given in flags.items() if given),
        untested_on=tuple(untested_on or ()),
        attach=attach,
        sources=sources,
        plain_http=plain_http,
        candidate=candidate,
        share=cache_push,
        compression=compression,
    )
    prepared = publishing.prepare(request, where)
    surroundings = detect(site, cache=cache)
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    with shown(progress, sys.stderr) as live:
        context = publishing.PushContext(store=where, site=surroundings, key=key, progress=live, warn=warn)
        pushed = publishing.push(prepared, context)
    for waiver in pushed.waivers:
        warn(f"{waiver.flag}: {waiver.reason}")
    if as_json:
        from imagebuilder.cli import results

        answer(results.images.PushedResult.of(pushed))
    else:
        _show(pushed, keyed=key is not None, candidate=candidate)


def _show(pushed: Pushed, *, keyed: bool, candidate: bool) -> None:
    """Print a push for people."""
    from imagebuilder.core.progress import human
    from imagebuilder.recipe import runtimes

    result = pushed.result
    out(f"pushed  {result.reference}")
    out(f"tags    {', '.join(result.tags)}")
    for tag, digest in result.moved:
        out(f"moved   {tag}, which pointed to {digest}")
    out(
        f"sent    {human(result.pushed_bytes)} in {result.pushed_blobs} blobs, "
        f"{human(result.reused_bytes)} were there already, {result.seconds:.1f} s"
    )
    if pushed.packing_seconds:
        out(f"zstd    {pushed.packing_seconds:.1f} s to pack the layers that were not packed yet")
        least = ", ".join(f"{name} {version}" for name, version in runtimes.ZSTD.items() if version)
        out(f"needs   {least}, or newer")
    if kinds := [kind for kind, _ in pushed.attached[len(pushed.images) - 1].artefacts]:
        out(f"with    {', '.join(kinds)}")
    if keyed:
        out(f"signed  {pushed.signed} new signatures")
    if candidate:
        out(f"next:   imagebuilder smoke-test --attach {result.reference}, on a host that can prove it")
        out(f"        imagebuilder promote {result.reference}")
    else:
        out(f"next:   imagebuilder verify {result.reference}" + (" --key FILE.pub" if keyed else ""))
    if pushed.is_index:
        for image in pushed.images:
            out(f"        {image.platform}  {image.manifest}")
