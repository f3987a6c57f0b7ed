"""The verb `smoke-test`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from imagebuilder.cli import completion
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    HtmlFile,
    Json,
    JunitFile,
    PlainHttp,
    PlatformName,
    ReportKey,
    SiteFile,
    StoreFolder,
    app,
    ask_password,
    err,
    open_store,
    out,
    warn,
    write_views,
)
from imagebuilder.cli.engines import load_image
from imagebuilder.cli.launch import launch
from imagebuilder.errors import InputError, TestFailure

if TYPE_CHECKING:
    from imagebuilder.host.site import Site
    from imagebuilder.smoke.report import CheckResult, Report
    from imagebuilder.smoke.target import SlurmImage, SmokeTarget
    from imagebuilder.store import Store


_Target = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE|IMAGE]",
        help="A recipe that was built, or any image: in Docker or Podman, or in a registry.",
        autocompletion=completion.recipe,
    ),
]
_Mode = Annotated[str, typer.Option("--mode", help="auto, cpu, one-gpu-shared or multi-gpu.")]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="auto, docker, podman, process (no containers: this Python), ssh (--hosts), or slurm (the nodes "
        "of this Slurm job).",
    ),
]
_Hosts = Annotated[
    str,
    typer.Option(
        "--hosts", metavar="A,B", help="For --runtime ssh: hosts that run already, as your ssh knows them."
    ),
]
_Variant = Annotated[
    str,
    typer.Option(
        "--variant",
        help="How a Slurm job runs the image: bare (the nodes run it already), pyxis, apptainer or podman.",
    ),
]
_ImageFile = Annotated[
    Path | None,
    typer.Option(
        "--image-file", metavar="FILE", help="For Slurm: the image as squashfs or SIF, on every node."
    ),
]
_AsJob = Annotated[
    str,
    typer.Option(
        "--as-job",
        metavar="KIND",
        help="Write a job that tests the image by itself, for a target of `launch` such as jobset or slurm; "
        "`report --from-log` reads its log.",
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Folder for the job. [default: print its only file]"),
]
_Overlay = Annotated[
    Path | None,
    typer.Option("-f", "--overlay", metavar="FILE", help="YAML to merge into the job's manifest."),
]
_Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes, at least two.")]
_NprocPerNode = Annotated[int, typer.Option("--nproc-per-node", help="Number of ranks on each node.")]
_Gpus = Annotated[
    str,
    typer.Option(
        "--gpus",
        metavar="0,2|all",
        help="GPUs by number or uuid in nvidia-smi's list: one for each rank, or one for all.",
    ),
]
_Checks = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="NAME",
        help="Run only this check; may be repeated.",
        autocompletion=completion.check,
    ),
]
_Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="NAME=VERSION",
        help="A version that must be loaded, such as nccl=2.27.5; may be repeated.",
        autocompletion=completion.component,
    ),
]
_Patience = Annotated[float, typer.Option("--patience", help="Multiply every time limit by this factor.")]
_Transport = Annotated[
    str,
    typer.Option("--transport", help="The network that NCCL must use between nodes: any, socket, ib or ofi."),
]
_MinBusbw = Annotated[
    float,
    typer.Option("--min-busbw", metavar="GB/S", help="Minimum bus bandwidth of the largest allreduce."),
]
_Scaling = Annotated[
    bool, typer.Option("--scaling", help="Also time training on 1x1, 1x2, 2x1 and 2x2 (nodes x ranks).")
]
_Workload = Annotated[
    str, typer.Option("--workload", help="What --scaling trains: digits, or resnet (on random images).")
]
_Epochs = Annotated[int, typer.Option("--epochs", help="Number of epochs that --scaling trains.")]
_Full = Annotated[
    bool, typer.Option("--full", help="Let --scaling train on all 60,000 digits, downloaded with npm.")
]
_Again = Annotated[
    bool, typer.Option("--again", help="Run every check, also those whose earlier results hold.")
]
_Tests = Annotated[
    Path | None,
    typer.Option(
        "--tests",
        metavar="DIR",
        help="Also run these pytest files, with testinfra's `host` for every node. [default: the recipe's]",
    ),
]
_Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write the JSON report to this file.")
]
_Attach = Annotated[
    bool,
    typer.Option("--attach", help="Attach the report to the image, which must be named by its registry."),
]
# What a job that runs by itself follows.
_OF_JOBS = frozenset(
    {"target", "as_job", "nodes", "nproc_per_node", "variant", "image_file", "mode", "overlay", "output"}
    | {"platform", "plain_http", "site", "store"}
)
_MODES_OF_JOBS = ("auto", "cpu", "multi-gpu")


@app.command("smoke-test")
def smoke_test(
    context: typer.Context,
    target: _Target = "",
    platform: PlatformName = "",
    mode: _Mode = "auto",
    runtime: _Runtime = "auto",
    hosts: _Hosts = "",
    variant: _Variant = "",
    image_file: _ImageFile = None,
    as_job: _AsJob = "",
    output: _Output = None,
    overlay: _Overlay = None,
    nodes: _Nodes = 2,
    nproc_per_node: _NprocPerNode = 1,
    gpus: _Gpus = "",
    checks: _Checks = None,
    expect: _Expect = None,
    patience: _Patience = 1.0,
    transport: _Transport = "any",
    min_busbw: _MinBusbw = 0.0,
    scaling: _Scaling = False,
    workload: _Workload = "digits",
    epochs: _Epochs = 1,
    full: _Full = False,
    again: _Again = False,
    tests: _Tests = None,
    report: _Report = None,
    html: HtmlFile = None,
    junit: JunitFile = None,
    attach: _Attach = False,
    sign_key: ReportKey = None,
    plain_http: PlainHttp = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Test an image in two containers. Exit code 0: passed, 1: failed, 2: could not run."""
    if as_job:
        _require_plain_job(context, target, mode)
        launch(
            target,
            target=as_job,
            nodes=nodes,
            nproc_per_node=nproc_per_node,
            variant=variant,
            image_file=str(image_file or ""),
            gpus=0 if mode == "cpu" else nproc_per_node if mode == "multi-gpu" else -1,
            smoke=True,
            overlay=overlay,
            output=output,
            platform=platform,
            plain_http=plain_http,
            site=site,
            store=store,
        )
        return
    if output or overlay:
        raise InputError("is only for --as-job", where="--output" if output else "--overlay")
    from imagebuilder.host.site import detect
    from imagebuilder.publish import attach as attaching
    from imagebuilder.publish.attest import signing_keys
    from imagebuilder.smoke import report as reports
    from imagebuilder.smoke.run import Watch, run_smoke
    from imagebuilder.smoke.target import Scaling, SmokeOptions, expecting

    started, nodes_there = _running_nodes(runtime, hosts, variant, image_file, target, mode)
    options = SmokeOptions(
        mode=cast("Any", mode),
        runtime=cast("Any", runtime),
        nodes=len(nodes_there) or nodes,
        hosts=nodes_there,
        slurm=started,
        nproc_per_node=nproc_per_node,
        gpus=tuple(gpus.split(",")) if gpus else (),
        patience=patience,
        only=frozenset(checks or ()),
        transport=cast("Any", transport),
        min_busbw=min_busbw,
        scaling=Scaling(asked=scaling, workload=cast("Any", workload), epochs=epochs, full=full),
        again=again,
        tests=tests or _named_tests(target),
    )
    _require_attachable(target, attach=attach, partial=bool(checks), signing=sign_key is not None)
    # Before the test, which takes minutes: a wrong key or password must not waste it.
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    where, surroundings = open_store(store), detect(site)
    source = started.source or target
    found = _smoke_target(source, runtime, where, platform, plain_http, surroundings, nodes_there)
    found = expecting(found, expect or ())
    watch = Watch(ended=lambda check: err(_row(check)))
    result = run_smoke(found, options, store=where, site=surroundings, watch=watch)
    _keep(result, where if not checks else None, report)
    write_views(result, html, junit)
    if attach:
        request = attaching.AttachRequest(image=target, key=key, plain_http=plain_http)
        err(attaching.attach(reports.dumps(result).encode(), request, where, surroundings).told)
    if as_json:
        answer(result)
    else:
        _show(result, target, where, platform)
    if not result.passed:
        raise typer.Exit(TestFailure.exit_code)


def _keep(result: Report, store: Store | None, file: Path | None) -> None:
    """Keep a report in the store, where it allows a push, and write it to a file.

    A run with --check proves nothing, and must not replace a passing report: it has no store.
    """
    from imagebuilder.smoke import report as reports

    if result.digest and store:
        reports.write(result, store.report(result.digest))
    if file is not None:
        reports.write(result, file)


def _show(result: Report, target: str, store: Store, platform: str) -> None:
    """Print a report, and what to do next."""
    from imagebuilder.smoke import report as reports
    from imagebuilder.workflow import named

    for line in reports.lines(result):
        out(line)
    if result.passed and target and result.runtime != "slurm" and not named(target).in_registry:
        out(f"next: {_next(target, store, platform, result.runtime)}")


def _running_nodes(
    runtime: str, hosts: str, variant: str, image_file: Path | None, target: str, mode: str
) -> tuple[SlurmImage, tuple[str, ...]]:
    """Find the nodes that run already, and how those of a Slurm job run the image."""
    from imagebuilder.smoke.nodes import remote, slurm
    from imagebuilder.smoke.target import SlurmImage

    if runtime != "slurm":
        if variant or image_file:
            raise InputError("is only for --runtime slurm", where="--variant" if variant else "--image-file")
        return SlurmImage(), remote.checked(hosts) if hosts else ()
    if hosts:
        raise InputError("Slurm says which nodes there are: leave it out", where="--hosts")
    gpus = mode != "cpu" and bool(os.environ.get("SLURM_GPUS_ON_NODE"))
    started = slurm.chosen(variant, image_file, target, gpus=gpus)
    return started, slurm.allocation(os.environ)


def _require_plain_job(context: typer.Context, target: str, mode: str) -> None:
    """Refuse an image that nodes cannot pull, and options that a job which runs by itself does not follow."""
    from imagebuilder.workflow import named

    if not target or not named(target).in_registry:
        raise InputError(
            "name the image as registry.example/team/name@DIGEST: the nodes pull it from there",
            where="--as-job",
            hint="push it first: imagebuilder push --candidate RECIPE REPOSITORY",
        )
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and (name not in _OF_JOBS or (name == "mode" and mode not in _MODES_OF_JOBS)):
            raise InputError("is not for --as-job", where=parameter.opts[0])


def _named_tests(target: str) -> Path | None:
    """Return the folder of tests that a recipe names; None for an image."""
    from imagebuilder.workflow import named, read_recipe

    word = named(target)
    if not word.is_recipe:
        return None
    tests = read_recipe(word.path)[0].recipe.checks.tests
    return word.path.parent / tests if tests else None


def _row(check: CheckResult) -> str:
    how = "reused" if check.reused else f"{check.seconds:.1f} s"
    return f"{check.status:8} {check.name}  {how}"


def _next(target: str, store: Store, platform: str, engine: str) -> str:
    """Say how to publish what was tested: `push` sends images of the store, an engine those that it has."""
    from imagebuilder.workflow import last_image

    if last_image(target, store, platform):
        return f"imagebuilder push {target} REGISTRY/NAME"
    return (
        f"{engine} tag {target} REGISTRY/NAME:TAG && {engine} push REGISTRY/NAME:TAG\n"
        "      imagebuilder smoke-test REGISTRY/NAME:TAG --attach"
    )


def _require_attachable(target: str, *, attach: bool, partial: bool, signing: bool) -> None:
    """Refuse options that contradict each other, before the test runs."""
    from imagebuilder.workflow import named

    if signing and not attach:
        raise InputError("--sign-key has no effect without --attach", where="imagebuilder smoke-test")
    if attach and partial:
        raise InputError("a report of single checks proves nothing: leave out --check", where="--attach")
    if attach and not named(target).in_registry:
        raise InputError(
            "name the image as registry.example/team/name@DIGEST: the report is attached there",
            where="--attach",
            hint="to attach an existing report, run: imagebuilder report "
            f"{target or 'RECIPE'} --attach REPOSITORY",
        )


def _smoke_target(
    text: str,
    runtime: str,
    store: Store,
    platform: str,
    plain_http: bool,
    site: Site,
    hosts: tuple[str, ...],
) -> SmokeTarget:
    """Find the image to test; an image of the store is loaded into the engine first."""
    from imagebuilder.smoke import target as targets
    from imagebuilder.workflow import built_image, labels, named, read_recipe

    if runtime == "process":
        return targets.from_environment()
    if runtime == "slurm":
        return targets.on_hosts((text,) if text else hosts)
    if hosts:
        if text:
            raise InputError("hosts run already, so no image is started on them", where="--runtime ssh")
        return targets.on_hosts(hosts)
    if not text:
        hint = "name a recipe that was built, or an image"
        raise InputError("no image is given", where="imagebuilder smoke-test", hint=hint)
    image = built_image(text, store, platform)
    if image is None:
        try:
            return _elsewhere(text, runtime, platform, plain_http, site)
        except InputError as error:
            raise _with_name_in_store(error, text, store) from None
    reference = load_image(image, store, site, runtime)
    found = targets.from_labels(reference, labels(image, store), digest=image.manifest, config=image.config)
    word = named(text)
    gpus = read_recipe(word.path)[0].recipe.hosts.gpus if word.is_recipe else ()
    return replace(found, gpus=gpus)


def _with_name_in_store(error: InputError, text: str, store: Store) -> InputError:
    """Say so if the image that the engine lacks was built, and only not loaded."""
    name = text.partition(":")[0]
    if text not in {f"{image.name}:{image.tag}" for image in store.images(name)}:
        return error
    hint = f"the store has it, and this loads it: imagebuilder smoke-test {name}; a build does with --load"
    return InputError(error.problems[0].message, where=text, hint=hint)


def _elsewhere(text: str, runtime: str, platform: str, plain_http: bool, site: Site) -> SmokeTarget:
    """Find an image that is not in the store: in the engine, or in the registry that its name says.

    A name with a registry's host means what the registry has now, even if the engine has an older image.
    """
    from imagebuilder.core.reference import DOCKER_HUB, parse
    from imagebuilder.errors import RegistryError
    from imagebuilder.publish import tested
    from imagebuilder.smoke import engine as engines
    from imagebuilder.workflow import named

    with engines.connect(cast("Any", runtime)) as engine:
        in_registry = named(text).in_registry
        is_there = not in_registry or engines.has(engine, text)
        if not in_registry or (is_there and parse(text).host in {DOCKER_HUB, "localhost"}):
            return engines.look_up(engine, text)
        try:
            image = tested.find(text, site, platform=platform, plain_http=plain_http)
        except RegistryError as error:
            if not is_there:
                raise
            warn(f"the image that {engine.kind} has is tested: {error}")
            return engines.look_up(engine, text)
        if not engines.has(engine, image.reference):
            err(f"{engine.kind} pulls {image.reference}")
            engines.pull(engine, image.repository, image.digest)
        source = f"lock {image.lock[:12]}, which is attached" if image.lock else "its labels"
        err(f"tests {image.reference}; what it promises is from {source}")
        return engines.look_up(engine, image.reference, image.digest)
