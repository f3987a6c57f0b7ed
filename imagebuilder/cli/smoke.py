"""The verb `smoke-test`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

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
from imagebuilder.errors import InputError, TestFailure

if TYPE_CHECKING:
    from imagebuilder.smoke.report import CheckResult
    from imagebuilder.smoke.target import SmokeTarget
    from imagebuilder.store import Store


_Target = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE|IMAGE]",
        help="A recipe that was built, or any image: in Docker or Podman, or in a registry.",
    ),
]
_Mode = Annotated[str, typer.Option("--mode", help="auto, cpu, one-gpu-shared or multi-gpu.")]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime", help="auto, docker, podman, process (no containers: this Python) or ssh (--hosts)."
    ),
]
_Hosts = Annotated[
    str,
    typer.Option(
        "--hosts", metavar="A,B", help="For --runtime ssh: hosts that run already, as your ssh knows them."
    ),
]
_Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes, at least two.")]
_NprocPerNode = Annotated[int, typer.Option("--nproc-per-node", help="Number of ranks on each node.")]
_Checks = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="NAME", help="Run only this check; may be repeated."),
]
_Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="NAME=VERSION",
        help="A version that must be loaded, such as nccl=2.27.5; may be repeated.",
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
_Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write the JSON report to this file.")
]
_Attach = Annotated[
    bool,
    typer.Option("--attach", help="Attach the report to the image, which must be named by its registry."),
]


@app.command("smoke-test")
def smoke_test(
    target: _Target = "",
    platform: PlatformName = "",
    mode: _Mode = "auto",
    runtime: _Runtime = "auto",
    hosts: _Hosts = "",
    nodes: _Nodes = 2,
    nproc_per_node: _NprocPerNode = 1,
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
    from imagebuilder.host.site import detect
    from imagebuilder.publish import attach as attaching
    from imagebuilder.publish.attest import signing_keys
    from imagebuilder.smoke import report as reports
    from imagebuilder.smoke.nodes import remote
    from imagebuilder.smoke.run import Watch, run_smoke
    from imagebuilder.smoke.target import Scaling, SmokeOptions, expecting
    from imagebuilder.workflow import named

    nodes_there = remote.checked(hosts) if hosts else ()
    options = SmokeOptions(
        mode=cast("Any", mode),
        runtime=cast("Any", runtime),
        nodes=len(nodes_there) or nodes,
        hosts=nodes_there,
        nproc_per_node=nproc_per_node,
        patience=patience,
        only=frozenset(checks or ()),
        transport=cast("Any", transport),
        min_busbw=min_busbw,
        scaling=Scaling(asked=scaling, workload=cast("Any", workload), epochs=epochs, full=full),
        again=again,
    )
    _require_attachable(target, attach=attach, partial=bool(checks), signing=sign_key is not None)
    # Before the test, which takes minutes: a wrong key or password must not waste it.
    key = signing_keys.load_private(sign_key, ask_password) if sign_key else None
    where, surroundings = open_store(store), detect(site)
    found = _smoke_target(target, runtime, where, platform, plain_http, site, nodes_there)
    found = expecting(found, expect or ())
    watch = Watch(ended=lambda check: err(_row(check)))
    result = run_smoke(found, options, store=where, site=surroundings, watch=watch)
    if result.digest and not checks:
        # This report allows a push. A run with --check proves nothing, and must not replace a passing report.
        reports.write(result, where.report(result.digest))
    if report is not None:
        reports.write(result, report)
    write_views(result, html, junit)
    if attach:
        request = attaching.AttachRequest(image=target, key=key, plain_http=plain_http)
        err(attaching.attach(reports.dumps(result).encode(), request, where, surroundings).told)
    if as_json:
        out(reports.dumps(result).rstrip("\n"))
    else:
        for line in reports.lines(result):
            out(line)
        if result.passed and target and not named(target).in_registry:
            out(f"next: {_next(target, where, platform, result.runtime)}")
    if not result.passed:
        raise typer.Exit(TestFailure.exit_code)


def _row(check: CheckResult) -> str:
    how = "reused" if check.reused else f"{check.seconds:.1f} s"
    return f"{check.status:8} {check.name}  {how}"


def _next(target: str, store: Store, platform: str, engine: str) -> str:
    """Say how to publish what was tested: `push` sends images of the store, an engine those that it has."""
    from imagebuilder.workflow import last_image

    if last_image(target, store, platform):
        return f"imagebuilder push {target} REGISTRY/NAME"
    return f"{engine} tag {target} REGISTRY/NAME:TAG && {engine} push REGISTRY/NAME:TAG"


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
    site: Path | None,
    hosts: tuple[str, ...],
) -> SmokeTarget:
    """Find the image to test; an image of the store is loaded into the engine first."""
    from imagebuilder.smoke import target as targets
    from imagebuilder.workflow import built_image, labels, named, read_recipe

    if runtime == "process":
        return targets.from_environment()
    if hosts:
        if text:
            raise InputError("hosts run already, so no image is started on them", where="--runtime ssh")
        return targets.on_hosts(hosts)
    if not text:
        hint = "name a recipe that was built, or an image"
        raise InputError("no image is given", where="imagebuilder smoke-test", hint=hint)
    image = built_image(text, store, platform)
    if image is None:
        return _elsewhere(text, runtime, platform, plain_http, site)
    reference = load_image(image, store, runtime)
    found = targets.from_labels(reference, labels(image, store), digest=image.manifest, config=image.config)
    word = named(text)
    gpus = read_recipe(word.path)[0].recipe.hosts.gpus if word.is_recipe else ()
    return replace(found, gpus=gpus)


def _elsewhere(text: str, runtime: str, platform: str, plain_http: bool, site: Path | None) -> SmokeTarget:
    """Find an image that is not in the store: in the engine, or in the registry that its name says.

    A name with a registry's host means what the registry has now, even if the engine has an older image.
    """
    from imagebuilder.core.reference import DOCKER_HUB, parse
    from imagebuilder.errors import RegistryError
    from imagebuilder.host.site import detect
    from imagebuilder.publish import tested
    from imagebuilder.smoke import engine as engines
    from imagebuilder.workflow import named

    with engines.connect(cast("Any", runtime)) as engine:
        in_registry = named(text).in_registry
        is_there = not in_registry or engines.has(engine, text)
        if not in_registry or (is_there and parse(text).host in {DOCKER_HUB, "localhost"}):
            return engines.look_up(engine, text)
        try:
            image = tested.find(text, detect(site), platform=platform, plain_http=plain_http)
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
