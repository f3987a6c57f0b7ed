"""Engines on the command line: their options, what BuildKit makes alone, and images put into them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from imagebuilder.cli.base import err, out, out_json
from imagebuilder.errors import InputError

if TYPE_CHECKING:
    from imagebuilder.engines.docker import PureBuilt
    from imagebuilder.engines.means import Means
    from imagebuilder.lock import Lock
    from imagebuilder.plan import Plan
    from imagebuilder.site import Site
    from imagebuilder.store import ImageRecord, Store


@dataclass(frozen=True, kw_only=True)
class Pure:
    """How `build --pure` was asked for: where the image goes, and how that is told."""

    load: bool
    output: Path | None
    progress: str
    as_json: bool


def docker_means(engine: str, builder: str, base: str, *, pure: bool, verify: bool) -> Means | None:
    """Read the options of the docker engine; None for the other one.

    Raises:
        InputError: a word that is none, or an option of the engine that was not asked for.

    """
    from imagebuilder.engines.means import CHOICES, Means

    if engine not in {"embedded", "docker"}:
        raise InputError(f"`{engine}` is none of embedded, docker", where="--engine")
    if base not in CHOICES:
        raise InputError(f"`{base}` is none of {', '.join(CHOICES)}", where="--base")
    if engine == "docker" and verify:
        raise InputError(
            "the docker engine promises the same files, not the same bytes",
            where="--verify-reproducible",
            hint="leave out --engine docker",
        )
    if engine == "docker":
        return Means(builder=builder, base=cast("Any", base))
    for option, given in (("--builder", builder), ("--base", base != "auto"), ("--pure", pure)):
        if given:
            raise InputError("counts only with the docker engine", where=option, hint="add --engine docker")
    return None


def build_pure(
    targets: Sequence[tuple[Lock, Plan]], store: Store, site: Site, means: Means, asked: Pure
) -> None:
    """Have BuildKit build the Dockerfile of one platform, and show what came of it."""
    from imagebuilder.engines import docker
    from imagebuilder.engines.embedded import Workshop
    from imagebuilder.progress import shown

    if len(targets) > 1:
        raise InputError(
            "BuildKit alone builds one platform at a time", where="--pure", hint="name one with --platform"
        )
    ((locked, planned),) = targets
    with shown(asked.progress, sys.stderr) as live:
        shop = Workshop(lock=locked, store=store, site=site, progress=live)
        # Where no other place was named it goes where `docker build` puts it.
        load = asked.load or asked.output is None
        built = docker.build_pure(planned, shop, means, load=load, output=asked.output)
    _show(built, planned, asked)


def load_image(image: ImageRecord, store: Store, runtime: str = "auto") -> str:
    """Put an image into the local engine; returns what the engine knows it by."""
    from imagebuilder.engines.load import load
    from imagebuilder.progress import human
    from imagebuilder.smoke.engine import connect

    with connect(cast("Any", runtime)) as engine:
        err(f"loading {image.name} into {engine.kind}")
        result = load(image, store, engine)
    err(f"loaded {result.reference}, {human(result.moved_bytes)} travelled")
    return result.reference


def _show(built: PureBuilt, planned: Plan, asked: Pure) -> None:
    if asked.as_json:
        out_json(
            {
                "name": planned.name,
                "platform": planned.platform,
                "digest": built.digest,
                "config": built.config,
                "tag": planned.tag,
                "seconds": round(built.seconds, 3),
                "reference": built.reference,
            }
        )
        return
    out(f"image   {planned.name}:{planned.tag}")
    out(f"digest  {built.digest or built.config}")
    out(f"time    {built.seconds:.1f} s, by BuildKit alone: it is not in the store")
    if asked.output is not None:
        out(f"wrote   {asked.output}")
    if built.reference:
        out(f"loaded  {built.reference}")
        out(f"next:   imagebuilder smoke-test {built.reference}")
