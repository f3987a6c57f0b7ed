"""The verb `promote`: the recipe's tags for an image that was proven elsewhere."""

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
    load_provers,
    out,
)

if TYPE_CHECKING:
    from imagebuilder.publish.promote import Promoted

_Image = Annotated[
    str, typer.Argument(metavar="IMAGE", help="registry.example/team/name@DIGEST, or a candidate's tag.")
]
_Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", help="A tag to set; may be repeated. [default: the recipe's]"),
]
_Recipe = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="The recipe, with its lock, that the image must be made from, and whose `proof:` holds. "
        "[default: the demands in the image's label]",
    ),
]
_Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Public key that must have signed the image and its recipe."),
]


@app.command()
def promote(
    image: _Image,
    tags: _Tags = None,
    move: MoveTags = False,
    recipe: _Recipe = None,
    signed_by: ProverKeys = None,
    key: _Key = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    as_json: Json = False,
) -> None:
    """Set the recipe's tags on a pushed image, once the proof that its recipe demands is attached."""
    from imagebuilder.host.site import detect
    from imagebuilder.publish import promote as promoting
    from imagebuilder.publish.attest import signing_keys

    request = promoting.PromoteRequest(
        image=image,
        tags=tuple(tags or ()),
        move=move,
        recipe=recipe,
        key=signing_keys.load_public(key) if key else None,
        provers=load_provers(signed_by),
        plain_http=plain_http,
    )
    promoted = promoting.promote(request, detect(site))
    if as_json:
        answer(promoted)
    else:
        _show(promoted)


def _show(promoted: Promoted) -> None:
    from imagebuilder.core.yamlfile import printable

    out(f"promoted  {promoted.reference}")
    for platform, reports in promoted.proofs.items():
        for report in reports:
            which = f"{printable(platform)}: " if len(promoted.proofs) > 1 else ""
            out(f"proof     {which}{printable(str(report))}")
    out(f"tags      {', '.join(promoted.tags)}")
    for tag, digest in promoted.moved:
        out(f"moved     {tag}, which pointed to {digest}")
