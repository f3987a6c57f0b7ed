"""The verb `join`: one image index for images of several platforms that were pushed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    Json,
    MoveTags,
    PlainHttp,
    ProverKeys,
    SiteFile,
    app,
    ask_password,
    load_provers,
    out,
    warn,
)

if TYPE_CHECKING:
    from imagebuilder.publish.join import Joined


_Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE...", help="Images of one repository, one for each platform: NAME:TAG or NAME@DIGEST."
    ),
]
_Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", help="A tag for the index; may be repeated. [default: the recipe's]"),
]
_OutOfStep = Annotated[
    bool, typer.Option("--out-of-step", help="Join images that were not made from one recipe and lock.")
]
_Untested = Annotated[
    bool, typer.Option("--untested", help="Join images without a passing smoke test attached.")
]
_SignKey = Annotated[
    Path | None, typer.Option("--sign-key", metavar="FILE", help="Sign the index, as cosign does.")
]
_Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="Public key that must have signed each image. [default: that of --sign-key]",
    ),
]
_UnsignedParts = Annotated[
    list[str] | None,
    typer.Option(
        "--unsigned-parts",
        metavar="PLATFORM",
        help="Join this platform's image although the key has not signed it; may be repeated.",
    ),
]


@app.command()
def join(
    images: _Images,
    tags: _Tags = None,
    move: MoveTags = False,
    out_of_step: _OutOfStep = False,
    untested: _Untested = False,
    sign_key: _SignKey = None,
    key: _Key = None,
    unsigned_parts: _UnsignedParts = None,
    signed_by: ProverKeys = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    as_json: Json = False,
) -> None:
    """Combine pushed images of several platforms. For images that were built on different hosts."""
    from imagebuilder.host.site import detect
    from imagebuilder.publish import join as joining
    from imagebuilder.publish.attest import signing_keys

    flags = {"recipe": out_of_step, "smoke-test": untested}
    request = joining.JoinRequest(
        images=tuple(images),
        tags=tuple(tags or ()),
        move=move,
        waived=frozenset(gate for gate, given in flags.items() if given),
        sign_key=signing_keys.load_private(sign_key, ask_password) if sign_key else None,
        key=signing_keys.load_public(key) if key else None,
        unsigned_parts=tuple(unsigned_parts or ()),
        provers=load_provers(signed_by),
        plain_http=plain_http,
    )
    joined = joining.join(request, detect(site))
    for waiver in joined.joint.waivers:
        warn(f"{waiver.flag}: {waiver.reason}")
    if as_json:
        from imagebuilder.cli import results

        answer(results.images.JoinResult.of(joined))
    else:
        _show(joined, signing=sign_key is not None)


def _show(joined: Joined, *, signing: bool) -> None:
    out(f"joined  {joined.reference}")
    out(f"tags    {', '.join(joined.tags)}")
    for tag, digest in joined.moved:
        out(f"moved   {tag}, which pointed to {digest}")
    for platform, digest in joined.joint.images:
        out(f"        {platform}  {digest}")
    if signing:
        out(f"signed  {joined.signed} new signatures")
    out(f"next:   imagebuilder inspect {joined.reference}")
