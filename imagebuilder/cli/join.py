"""The verb that joins published images of several platforms."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    MoveTags,
    PlainHttp,
    SiteFile,
    app,
    ask_password,
    err,
    out,
    out_json,
    registry_options,
)
from imagebuilder.errors import InputError


@app.command()
def join(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Images of one repository, one of each platform: NAME:TAG or NAME@DIGEST.",
        ),
    ],
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", help="A tag for the index; may be repeated. [default: the recipe's]"),
    ] = None,
    move: MoveTags = False,
    out_of_step: Annotated[
        bool, typer.Option("--out-of-step", help="Join images that are not of one recipe and lock.")
    ] = False,
    untested: Annotated[
        bool, typer.Option("--untested", help="Join images without a passing smoke test attached.")
    ] = False,
    sign_key: Annotated[
        Path | None, typer.Option("--sign-key", metavar="FILE", help="Sign the index, as cosign does.")
    ] = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    as_json: Json = False,
) -> None:
    """Join pushed images of several platforms under one name, where each was built on a host of its own."""
    from imagebuilder.attest import joining, published, signature, signing_keys
    from imagebuilder.registry import Client, parse, upload
    from imagebuilder.site import detect

    references = [parse(image) for image in images]
    names = {reference.name for reference in references}
    if len(names) > 1:
        raise InputError(
            f"they are in different repositories: {', '.join(sorted(names))}",
            where="imagebuilder join",
            hint="push them to the same one: an index names images beside it",
        )
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    options = registry_options(detect(site), references[0].host, plain_http=plain_http)
    found = [published.read(published.open_image(image, options)) for image in images]
    waived = [gate for gate, said in (("recipe", out_of_step), ("smoke-test", untested)) if said]
    joint = joining.join(found, waived)
    wanted = tuple(tags or joint.tags)
    if not wanted:
        raise InputError("no tag is given", where="imagebuilder join", hint="say --tag")
    client = Client(references[0], options, "pull,push")
    signed: list[bool] = []

    def attach(digest: str) -> None:
        if key is not None:
            signed.append(signature.sign(client, digest, key))

    moved = upload.push_index(client, joint.index, wanted, move=move, own=joint.own, attach=attach)
    for waiver in joint.waivers:
        err(f"warning: {waiver.flag}: {waiver.reason}")
    reference = f"{references[0].name}@{joint.digest}"
    if as_json:
        rows = [{"platform": platform, "digest": digest} for platform, digest in joint.images]
        summary = {"reference": reference, "digest": joint.digest, "tags": list(wanted), "platforms": rows}
        waivers = [dataclasses.asdict(waiver) for waiver in joint.waivers]
        out_json({**summary, "moved": moved, "signed": sum(signed), "waivers": waivers})
        return
    out(f"joined  {reference}")
    out(f"tags    {', '.join(wanted)}")
    for tag, digest in moved:
        out(f"moved   {tag}, which stood for {digest}")
    for platform, digest in joint.images:
        out(f"        {platform}  {digest}")
    if key is not None:
        out(f"signed  {sum(signed)} new signatures")
    out(f"next:   imagebuilder inspect {reference}")
