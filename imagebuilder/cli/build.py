"""The verb `build`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli import engines
from imagebuilder.cli.base import (
    Json,
    PlatformName,
    ProgressKind,
    RecipeFile,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    check_progress,
    err,
    open_store,
    out,
    out_json,
)
from imagebuilder.errors import TestFailure

if TYPE_CHECKING:
    from imagebuilder.engines.embedded import Built
    from imagebuilder.engines.means import Means
    from imagebuilder.engines.workshop import Workshop
    from imagebuilder.lock import Lock
    from imagebuilder.plan import Plan
    from imagebuilder.reproduce import Verdict
    from imagebuilder.site import Site
    from imagebuilder.store import ImageRecord, IndexRecord, Store

_BAKED = (
    "warning: `ssh: {keys: baked}` puts a private key into a layer: whoever can pull the image can log in to "
    "every node that runs it; push refuses it without --allow-baked-keys"
)


_Load = Annotated[bool, typer.Option("--load", help="Put the image into the local Docker or Podman.")]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="PATH", help="Also write an OCI layout: a folder, or a .tar file."
    ),
]
_VerifyReproducible = Annotated[
    bool,
    typer.Option(
        "--verify-reproducible",
        help="Build again in a fresh store, and fail with every file that differs if the digest does.",
    ),
]
_Verify = Annotated[
    bool, typer.Option("--verify", help="Compute every diffID again, also those that the lock knows.")
]
_Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="embedded (no daemon), or docker (through buildx).")
]
_Builder = Annotated[
    str, typer.Option("--builder", metavar="NAME", help="docker: which of `docker buildx ls`.")
]
_Base = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="KIND",
        help="docker: the base from its registry, bootstrap for one made here, or auto.",
    ),
]
_Pure = Annotated[
    bool, typer.Option("--pure", help="docker: BuildKit builds all of the rendered Dockerfile.")
]


@app.command()
def build(
    recipe_file: RecipeFile,
    load: _Load = False,
    output: _Output = None,
    platform: PlatformName = "",
    verify_reproducible: _VerifyReproducible = False,
    verify: _Verify = False,
    engine: _Engine = "embedded",
    builder: _Builder = "",
    base: _Base = "auto",
    pure: _Pure = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Build the image of a recipe, for each of its platforms. Locks it first if it never was."""
    from imagebuilder import known, oci
    from imagebuilder import lock as locks
    from imagebuilder.attest import source as sources
    from imagebuilder.plan import KeysLayer
    from imagebuilder.site import detect
    from imagebuilder.workflow import join_images, read_plans, update_lock

    check_progress(progress)
    means = engines.docker_means(engine, builder, base, pure=pure, verify=verify_reproducible)
    if not locks.path_for(recipe_file).exists():
        err(f"{recipe_file} has no lock yet: resolving")
        update_lock(recipe_file, site, None, open_store(store), tools=tools)
    targets = read_plans(recipe_file, platform)
    source = sources.of_recipe(recipe_file)
    where = open_store(store)
    surroundings = detect(site, distribution=targets[0][0].base.partition(":")[0], tools=tools)
    if any(isinstance(layer, KeysLayer) for _, planned in targets for layer in planned.layers):
        err(_BAKED)
    if means is not None and pure:
        asked = engines.Pure(load=load, output=output, progress=progress, as_json=as_json)
        engines.build_pure(targets, where, surroundings, means, asked)
        return
    way = _Way(
        store=where,
        site=surroundings,
        means=means,
        progress=progress,
        trusting=not verify,
        twice=verify_reproducible,
    )
    made, verdicts = _make(targets, way)
    for built in made:
        sources.remember(where, built.image.manifest, source)
    known.remember(recipe_file, where)
    index = join_images(recipe_file, where)
    whole = index if index is not None and not platform else made[0].image
    if output is not None:
        oci.export(whole, where, output)
    reference = engines.load_image(_loadable(made), where) if load else ""
    if as_json:
        _print_built(whole, made, verdicts, reference)
    else:
        _show_images(made, index, verdicts)
        _show_next(reference, output, recipe_file)
    if not all(verdict.same for verdict in verdicts):
        raise TestFailure(
            "built again, the image has another digest", where=str(recipe_file), hint="what differs is above"
        )


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How images are made: where, by what, and how much of it is proven (see the options of `build`)."""

    store: Store
    site: Site
    means: Means | None
    progress: str
    trusting: bool
    twice: bool


def _make(targets: Sequence[tuple[Lock, Plan]], way: _Way) -> tuple[list[Built], list[Verdict]]:
    """Build the image of each platform, and each once more where that was asked for."""
    from imagebuilder import known, toolbox
    from imagebuilder.engines import embedded
    from imagebuilder.progress import shown

    # Before the first of them takes its minutes: may the last be made here at all?
    for _, planned in targets if way.means is None else ():
        embedded.require_possible(embedded.missing_layers(planned, way.store), toolbox.choose(way.site))
    made: list[Built] = []
    verdicts: list[Verdict] = []
    for locked, planned in targets:
        with shown(way.progress, sys.stderr) as live:
            shop = embedded.Workshop(
                lock=locked, store=way.store, site=way.site, progress=live, trusting=way.trusting
            )
            for title in () if way.trusting else known.distrust(planned, way.store):
                live.note(f"{title} is not what was recorded of it: it is made again")
            built = _with_docker(planned, shop, way.means) if way.means else embedded.build(planned, shop)
            made.append(built)
            if way.twice:
                verdicts.append(_made_again(planned, built, shop))
    return made, verdicts


# Each of these brings the network and more, which most builds of what is there already do without.
def _with_docker(planned: Plan, shop: Workshop, means: Means) -> Built:
    from imagebuilder.engines import docker

    return docker.build(planned, shop, means)


def _made_again(planned: Plan, built: Built, shop: Workshop) -> Verdict:
    from imagebuilder import reproduce

    return reproduce.verify(planned, built.image, shop)


def _print_built(
    whole: ImageRecord | IndexRecord, made: list[Built], verdicts: list[Verdict], reference: str
) -> None:
    rows = [_told(built) for built in made]
    for row, verdict in zip(rows, verdicts, strict=False):
        row["reproducible"] = {"same": verdict.same, **dataclasses.asdict(verdict)}
    if len(rows) == 1:
        out_json({**rows[0], "reference": reference})
    else:
        summary = {"name": whole.name, "digest": whole.manifest, "tag": whole.tag, "size": whole.size}
        out_json({**summary, "platforms": rows, "reference": reference})


def _show_images(made: list[Built], index: IndexRecord | None, verdicts: list[Verdict]) -> None:
    for built in made:
        _show_built(built)
    if index is not None:
        out(f"index   {index.manifest}, of {' and '.join(image.platform for image in index.images)}")
    if verdicts:
        from imagebuilder import reproduce

        for verdict in verdicts:
            for line in reproduce.lines(verdict):
                out(line)


def _told(built: Built) -> dict[str, object]:
    return {
        "name": built.image.name,
        "platform": built.image.platform,
        "digest": built.image.manifest,
        "config": built.image.config,
        "tag": built.image.tag,
        "size": built.image.size,
        "layers": len(built.image.layers),
        "layers_made": built.made,
        "layers_reused": built.reused,
        "fetched_bytes": built.fetched,
        "seconds": round(built.seconds, 3),
    }


def _loadable(made: list[Built]) -> ImageRecord:
    """Choose what goes into the local engine, which runs one platform well: its own, if it was built."""
    from imagebuilder import platforms

    own = platforms.own()
    return next((built.image for built in made if built.image.platform == own), made[0].image)


def _show_built(built: Built) -> None:
    from imagebuilder import platforms
    from imagebuilder.progress import human

    image = built.image
    foreign = "" if image.platform == platforms.DEFAULT else f" for {image.platform}"
    out(f"image   {image.name}:{image.tag}{foreign}")
    out(f"digest  {image.manifest}")
    layers = f"{len(image.layers)} layers ({built.made} made, {built.reused} reused)"
    out(f"size    {human(image.size)} in {layers}")
    out(f"time    {built.seconds:.1f} s, {human(built.fetched)} fetched")


def _show_next(reference: str, output: Path | None, recipe_file: Path) -> None:
    if output is not None:
        out(f"wrote   {output}")
    if reference:
        out(f"loaded  {reference}")
        out(f"next:   docker run --rm {reference} python -c 'import sys; print(sys.version)'")
    out(f"next:   imagebuilder smoke-test {recipe_file}")
    out(f"        imagebuilder push {recipe_file} REGISTRY/NAME")
