"""Verbs on images: fetch, build, smoke-test."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from imagebuilder.cli import engines
from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    JunitFile,
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
    write_views,
)
from imagebuilder.errors import InputError, TestFailure

if TYPE_CHECKING:
    from imagebuilder.engines.embedded import Built
    from imagebuilder.reproduce import Verdict
    from imagebuilder.smoke.target import Target
    from imagebuilder.store import ImageRecord, IndexRecord, Store

_BAKED = (
    "warning: `ssh: {keys: baked}` puts a private key into a layer: whoever can pull the image can log in to "
    "every node that runs it; push refuses it without --allow-baked-keys"
)


@app.command()
def fetch(
    recipe_files: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipes with locks.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Also put the files into this folder, a store of its own."
        ),
    ] = None,
    platform: PlatformName = "",
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Download all that building and testing will need, so that both work without a network afterwards."""
    from imagebuilder import supply
    from imagebuilder.progress import human, shown
    from imagebuilder.site import detect
    from imagebuilder.smoke.data import digits
    from imagebuilder.store import Store
    from imagebuilder.workflow import read_plans

    check_progress(progress)
    where = open_store(store)
    target = Store(output.absolute()) if output is not None else None
    locks = [(path, locked) for path in recipe_files for locked, _ in read_plans(path, platform)]
    rows: list[dict[str, object]] = []
    for path, locked in locks:
        surroundings = detect(site, distribution=locked.base.partition(":")[0], tools=tools)
        packages = (*(locked.image.layers if locked.image else ()), *locked.files)
        lacking = supply.absent(packages, where)
        with shown(progress, sys.stderr) as live:
            live.begin("fetch", str(path), "downloading", sum(package.size for package in lacking))
            supply.fetch(
                lacking,
                locked,
                where,
                surroundings,
                advance=lambda _sha256, count, live=live: live.advance("fetch", count),  # type: ignore[misc]
                finished=lambda _sha256: None,
            )
            live.end("fetch", str(path), "done", sum(package.size for package in packages))
        data = [digits(where, surroundings)] if "torch" in locked.pins else []
        if target is not None:
            supply.copy(packages, where, target)
            for file in data:
                target.take_download(file, file.name)
        fetched, size = sum(p.size for p in lacking), sum(p.size for p in packages)
        row = {"recipe": str(path), "architecture": locked.architecture, "packages": len(packages)}
        rows.append({**row, "bytes": size, "fetched_bytes": fetched})
        if not as_json:
            out(f"{path}: {human(fetched)} fetched, {human(size)} in {len(packages)} packages")
    if as_json:
        out_json({"store": str((target or where).root), "recipes": rows})
    elif target is not None:
        out(f"wrote {target.root}; next: imagebuilder build --store {target.root} RECIPE")


@app.command()
def build(
    recipe_file: RecipeFile,
    load: Annotated[
        bool, typer.Option("--load", help="Put the image into the local Docker or Podman.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Also write an OCI layout: a folder, or a .tar file."
        ),
    ] = None,
    platform: PlatformName = "",
    verify_reproducible: Annotated[
        bool,
        typer.Option(
            "--verify-reproducible",
            help="Build again in a fresh store, and fail with every file that differs if the digest does.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="NAME", help="embedded (no daemon), or docker (through buildx)."),
    ] = "embedded",
    builder: Annotated[
        str, typer.Option("--builder", metavar="NAME", help="docker: which of `docker buildx ls`.")
    ] = "",
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="KIND",
            help="docker: the base from its registry, bootstrap for one made here, or auto.",
        ),
    ] = "auto",
    pure: Annotated[
        bool, typer.Option("--pure", help="docker: BuildKit builds all of the rendered Dockerfile.")
    ] = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Build the image of a recipe, for each of its platforms. Locks it first if it never was."""
    from imagebuilder import lock as locks
    from imagebuilder import oci, reproduce, toolbox
    from imagebuilder.attest import source as sources
    from imagebuilder.engines import docker, embedded
    from imagebuilder.plan import KeysLayer
    from imagebuilder.progress import shown
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
    # Before the first of them takes its minutes: may the last be made here at all?
    for _, planned in targets if means is None else ():
        embedded.require_possible(embedded.missing_layers(planned, where), toolbox.choose(surroundings))
    made = []
    verdicts: list[Verdict] = []
    for locked, planned in targets:
        with shown(progress, sys.stderr) as live:
            shop = embedded.Workshop(lock=locked, store=where, site=surroundings, progress=live)
            made.append(docker.build(planned, shop, means) if means else embedded.build(planned, shop))
            if verify_reproducible:
                verdicts.append(reproduce.verify(planned, made[-1].image, shop))
        sources.remember(where, made[-1].image.manifest, source)
    index = join_images(recipe_file, where)
    whole = index if index is not None and not platform else made[0].image
    if output is not None:
        oci.export(whole, where, output)
    reference = _load(_loadable(made), where) if load else ""
    if as_json:
        _print_built(whole, made, verdicts, reference)
    else:
        _show_images(made, index, verdicts)
        _show_next(reference, output, recipe_file)
    if not all(verdict.same for verdict in verdicts):
        raise TestFailure(
            "built again, the image has another digest", where=str(recipe_file), hint="what differs is above"
        )


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
    from imagebuilder import reproduce

    for built in made:
        _show_built(built)
    if index is not None:
        out(f"index   {index.manifest}, of {' and '.join(image.platform for image in index.images)}")
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


@app.command("smoke-test")
def smoke_test(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE|IMAGE]", help="A recipe that was built, or an image of the local engine."
        ),
    ] = "",
    platform: PlatformName = "",
    mode: Annotated[str, typer.Option("--mode", help="auto, cpu, one-gpu-shared or multi-gpu.")] = "auto",
    runtime: Annotated[
        str, typer.Option("--runtime", help="auto, docker, podman, or process (no containers: this Python).")
    ] = "auto",
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes, at least two.")] = 2,
    nproc_per_node: Annotated[int, typer.Option("--nproc-per-node", help="How many ranks on each node.")] = 1,
    checks: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Run only this check; may be repeated."),
    ] = None,
    patience: Annotated[float, typer.Option("--patience", help="Factor on every time limit.")] = 1.0,
    transport: Annotated[
        str, typer.Option("--transport", help="What NCCL has to use between nodes: any, socket, ib or ofi.")
    ] = "any",
    min_busbw: Annotated[
        float,
        typer.Option(
            "--min-busbw", metavar="GB/S", help="Bus bandwidth that the largest allreduce must reach."
        ),
    ] = 0.0,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also time a training on 1x1, 1x2, 2x1 and 2x2 nodes x ranks.")
    ] = False,
    workload: Annotated[
        str, typer.Option("--workload", help="What --scaling trains: digits, or resnet on random images.")
    ] = "digits",
    epochs: Annotated[
        int, typer.Option("--epochs", help="How many epochs each layout of --scaling runs.")
    ] = 1,
    full: Annotated[
        bool, typer.Option("--full", help="Let --scaling train on all 60,000 digits, which npm fetches.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON report here too.")
    ] = None,
    html: HtmlFile = None,
    junit: JunitFile = None,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Prove an image on two nodes. Exit code 0: passed, 1: failed, 2: could not run."""
    from imagebuilder.site import detect
    from imagebuilder.smoke import report as reports
    from imagebuilder.smoke.run import Watch, run_smoke
    from imagebuilder.smoke.target import Options, Scaling

    options = Options(
        mode=cast("Any", mode),
        runtime=cast("Any", runtime),
        nodes=nodes,
        nproc_per_node=nproc_per_node,
        patience=patience,
        only=frozenset(checks or ()),
        transport=cast("Any", transport),
        min_busbw=min_busbw,
        scaling=Scaling(asked=scaling, workload=cast("Any", workload), epochs=epochs, full=full),
    )
    where = open_store(store)
    found = _smoke_target(target, runtime, where, platform)
    watch = Watch(ended=lambda check: err(f"{check.status:8} {check.name}  {check.seconds:.1f} s"))
    result = run_smoke(found, options, store=where, site=detect(site), watch=watch)
    if result.digest and not checks:
        # What allows a push; a run of single checks proves nothing, and must not undo a proof either.
        reports.write(result, where.report(result.digest))
    if report is not None:
        reports.write(result, report)
    write_views(result, html, junit)
    if as_json:
        out(reports.dumps(result).rstrip("\n"))
    else:
        for line in reports.lines(result):
            out(line)
        if result.passed and result.digest:
            out(f"next: imagebuilder push {target} REGISTRY/NAME")
    if not result.passed:
        raise typer.Exit(TestFailure.exit_code)


def _smoke_target(text: str, runtime: str, store: Store, platform: str = "") -> Target:
    """Find what a smoke test is to run on; an image of the store is put into the engine first."""
    from imagebuilder.smoke import engine as engines
    from imagebuilder.smoke import target as targets
    from imagebuilder.workflow import built_image, labels

    if runtime == "process":
        return targets.from_environment()
    if not text:
        hint = "name a recipe that was built, or an image"
        raise InputError("no image is given", where="imagebuilder smoke-test", hint=hint)
    image = built_image(text, store, platform)
    if image is None:
        with engines.connect(cast("Any", runtime)) as engine:
            return engines.look_up(engine, text)
    reference = _load(image, store, runtime)
    return targets.from_labels(reference, labels(image, store), digest=image.manifest, config=image.config)


def _load(image: ImageRecord, store: Store, runtime: str = "auto") -> str:
    """Put an image into the local engine; returns what the engine knows it by."""
    from imagebuilder.engines.load import load
    from imagebuilder.progress import human
    from imagebuilder.smoke.engine import connect

    with connect(cast("Any", runtime)) as engine:
        err(f"loading {image.name} into {engine.kind}")
        result = load(image, store, engine)
    err(f"loaded {result.reference}, {human(result.moved_bytes)} travelled")
    return result.reference


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
