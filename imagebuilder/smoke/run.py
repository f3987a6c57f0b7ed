"""Run the smoke test: nodes up, every check in order, nodes down, one report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from imagebuilder import __version__
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.host.engine import GpuRoute
from imagebuilder.host.site import Site
from imagebuilder.smoke import checks, gpus, reuse
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke.data import all_digits, are_needed, digits
from imagebuilder.smoke.gpus import Gpu, Gpus
from imagebuilder.smoke.nodes import containers as runtime
from imagebuilder.smoke.nodes import processes, remote, slurm
from imagebuilder.smoke.nodes.cluster import Cluster, RuntimeKind
from imagebuilder.smoke.nodes.reached import ReachedCluster
from imagebuilder.smoke.nodes.remote import RemoteNode
from imagebuilder.smoke.report import CheckResult, Earlier, Finding, Host, Mode, NodeGpu, Report, verdict
from imagebuilder.smoke.session import Check, CheckFailed, Session
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget
from imagebuilder.store import Store

CHECKS: tuple[Check, ...] = checks.load()

Started = Callable[[Cluster], None]
Begun = Callable[[Check], None]
Ended = Callable[[CheckResult], None]

_BAKED = (
    "the image has its ssh key in a layer: everybody who can pull it can log in to its nodes, and other "
    "hosts build a different image from the same lock"
)
_CAVEATS: Mapping[Mode, str] = {
    "cpu": "NCCL not exercised: the tensors were on CPUs",
    "one-gpu-shared": (
        "NCCL exercised over sockets only: all ranks shared one GPU, so neither P2P nor InfiniBand was used"
    ),
    "multi-gpu": "the nodes were on one host: no network between machines was exercised",
}


_NO_GPUS: tuple[Gpus, GpuRoute] = (Gpus(), "request")
_NOT_ASKED = "not asked for"
_REAL = frozenset({("ssh", "multi-gpu"), ("slurm", "multi-gpu"), ("job", "multi-gpu")})
# Checks that an image without ssh, MPI or a framework leaves out.
_BETWEEN = frozenset({"ssh", "environment", "mpirun", "rendezvous", "collectives", "training", "failure"})


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Callbacks: the nodes run, a check begins, a check has ended."""

    started: Started = lambda _cluster: None
    begun: Begun = lambda _check: None
    ended: Ended = lambda _result: None


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the nodes run."""

    runtime: RuntimeKind
    mode: Mode
    mode_reason: str
    host: Host
    gpus: tuple[NodeGpu, ...] = ()
    notes: tuple[str, ...] = ()


def run_smoke(
    target: SmokeTarget, options: SmokeOptions, *, store: Store, site: Site, watch: Watch | None = None
) -> Report:
    """Test an image on several nodes. A failed check is in the report; it raises nothing.

    Args:
        target: the image; with `--runtime process`, this Python's own packages.
        options: how to test.
        store: keeps the digits for training.
        site: the site's settings, to download the digits.
        watch: callbacks.

    Raises:
        EnvironmentFault: this host cannot run the test.
        InputError: the engine has another image under this name, or an option is impossible.
        FetchError: the digits could not be downloaded.

    """
    watch = watch or Watch()
    unknown = options.only - {check.name for check in CHECKS}
    if unknown:
        raise InputError(
            f"no check is called {', '.join(sorted(unknown))}",
            hint=f"checks: {', '.join(c.name for c in CHECKS)}",
        )

    def fetch(full: bool) -> Path:
        return all_digits(store) if full else digits(store, site)

    # Before any node starts: a failed download says nothing about the image.
    for full in _digits_needed(target, options):
        fetch(full)
    started, clock = time.monotonic(), datetime.now(UTC)
    earlier = _earlier(target, options, store)
    with _terminable():
        if options.runtime == "process":
            place, results = _on_this_host(target, options, fetch, watch)
        elif options.runtime in {"ssh", "slurm"}:
            place, results = _on_hosts(target, options, fetch, watch)
        else:
            place, results = _in_containers(target, options, fetch, watch, earlier)
    taken = any(result.reused for result in results)
    return Report(
        tool=f"imagebuilder {__version__}",
        recipe=target.recipe,
        # A derived image has more than its base's lock names.
        lock="" if target.origin == "derived" else target.lock,
        digest=target.digest,
        config=target.config,
        reference=target.reference,
        pins=dict(target.pins),
        runtime=place.runtime,
        nodes=options.nodes,
        nproc_per_node=options.nproc_per_node,
        mode=place.mode,
        mode_reason=place.mode_reason,
        caveats=(*caveats(target, (place.runtime, place.mode), results), *place.notes),
        host=place.host,
        gpus=place.gpus,
        checks=results,
        started=clock.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - started, 3),
        earlier=earlier if taken else None,
        passed=verdict(results),
    )


def choose_mode(options: SmokeOptions, found: tuple[str, ...], where: str) -> tuple[Mode, str]:
    """Choose the mode, which decides how tensors are sent, and the reason to report.

    Raises:
        EnvironmentFault: the requested mode needs GPUs that this host lacks.

    """
    count = len(found)
    seen = f"{where} offers {count or 'no'} GPU{'' if count == 1 else 's'}"
    wanted = options.nodes * options.nproc_per_node
    needed = {"auto": 0, "cpu": 0, "one-gpu-shared": 1, "multi-gpu": wanted}[options.mode]
    if count < needed:
        raise EnvironmentFault(
            f"mode {options.mode} needs {needed} GPU{'s' if needed > 1 else ''}, and {seen}",
            hint="install the NVIDIA driver and, for containers, the NVIDIA container toolkit; or test with "
            "--mode cpu",
        )
    if options.mode != "auto":
        return options.mode, f"as requested; {seen}"
    if count >= wanted:
        return "multi-gpu", f"{seen}, one for each of {wanted} ranks"
    if count:
        return "one-gpu-shared", f"{seen} for {wanted} ranks"
    return "cpu", seen


def _digits_needed(target: SmokeTarget, options: SmokeOptions) -> tuple[bool, ...]:
    """Return the digits that a run needs: 5000, all, or both."""
    # What an image of others has is known only when it runs.
    if target.origin != "foreign" and not are_needed(dict(target.pins)):
        return ()
    asked = [check for check in CHECKS if not options.only or check.name in options.only]
    amounts = {check.digits(options) for check in asked}
    return tuple(amount == "all" for amount in ("few", "all") if amount in amounts)


def _earlier(target: SmokeTarget, options: SmokeOptions, store: Store) -> Earlier | None:
    """Find an earlier report whose long checks hold for this image too."""
    image = reuse.stored(target.digest, store) if target.digest and options.may_reuse else None
    return reuse.find(image, store, target.recipe) if image else None


def _results_of(
    earlier: Earlier | None, target: SmokeTarget, options: SmokeOptions, place: _Place
) -> Mapping[str, CheckResult]:
    """Return the results that need not be found out again, by check; none if this run is of another kind."""
    if earlier is None:
        return {}
    then = earlier.report
    before = (then.tool, then.runtime, then.mode, then.nodes, then.nproc_per_node, then.pins, then.host.gpus)
    now = (
        *(f"imagebuilder {__version__}", place.runtime, place.mode, options.nodes, options.nproc_per_node),
        *(dict(target.pins), place.host.gpus),
    )
    long = {check.name for check in CHECKS if check.reusable}
    return {
        check.name: reuse.taken(check, then)
        for check in then.checks
        if before == now and check.name in long and check.status == "passed"
    }


def _in_containers(
    target: SmokeTarget,
    options: SmokeOptions,
    fetch: Callable[[bool], Path],
    watch: Watch,
    earlier: Earlier | None,
) -> tuple[_Place, tuple[CheckResult, ...]]:
    with engines.connect(options.runtime) as engine:
        image_environment = engines.require_same(engine, target)
        offered, route = engines.gpus(engine, target.reference) if options.mode != "cpu" else _NO_GPUS
        found = gpus.choose(offered, options.gpus, f"{engine.kind} here")
        mode, reason = choose_mode(options, found.names, f"{engine.kind} here")
        assigned = _assigned(options, found, mode)
        host = Host(
            cores=engine.cores,
            memory_bytes=engine.memory_bytes,
            gpus=found.names if mode != "cpu" else (),
            driver=found.driver,
            engine=engine.kind,
            engine_version=engine.version,
        )
        place = _Place(runtime=engine.kind, mode=mode, mode_reason=reason, host=host, gpus=told_of(assigned))
        run_id = secrets.token_hex(6)
        devices = runtime.Devices(route=route, of_node=assigned)
        with runtime.start(engine, target, options, devices, run_id) as cluster:
            watch.started(cluster)
            if target.origin == "foreign":
                target = cluster.prepare(target, run_id)
            session = Session(cluster, target, options, mode, image_environment, fetch)
            return place, all_checks(session, watch, _results_of(earlier, target, options, place))


def _on_this_host(
    target: SmokeTarget, options: SmokeOptions, fetch: Callable[[bool], Path], watch: Watch
) -> tuple[_Place, tuple[CheckResult, ...]]:
    offered = processes.gpus() if options.mode != "cpu" else Gpus()
    found = gpus.choose(offered, options.gpus, "this host")
    mode, reason = choose_mode(options, found.names, "this host")
    assigned = _assigned(options, found, mode)
    host = Host(
        cores=os.cpu_count() or 1,
        memory_bytes=processes.memory_bytes(),
        gpus=found.names if mode != "cpu" else (),
        driver=found.driver,
        engine="none",
        engine_version="",
    )
    place = _Place(runtime="process", mode=mode, mode_reason=reason, host=host, gpus=told_of(assigned))
    with processes.start(options, assigned) as cluster:
        watch.started(cluster)
        session = Session(cluster, target, options, mode, processes.environment(), fetch)
        return place, all_checks(session, watch, {})


def _on_hosts(
    target: SmokeTarget, options: SmokeOptions, fetch: Callable[[bool], Path], watch: Watch
) -> tuple[_Place, tuple[CheckResult, ...]]:
    with _reached(options) as cluster:
        found = cluster.gpus() if options.mode != "cpu" else ()
        # Every host needs a GPU for each of its ranks: hosts share none.
        usable = min((len(own.names) for own in found), default=0) >= options.nproc_per_node
        names = tuple(name for own in found for name in own.names) if usable else ()
        mode, reason = choose_mode(options, names, "each host" if not names else "all hosts together")
        first = cluster.facts[0]
        host = Host(
            cores=first.cores,
            memory_bytes=first.memory_bytes,
            gpus=names if mode != "cpu" else (),
            driver=found[0].driver if found else "",
            engine="none",
            engine_version="",
        )
        notes = tuple(
            f"{node.name} is {facts.host}, {facts.cores} cores, {facts.memory_bytes >> 30} GiB, "
            f"Python {facts.python}" + (f", {', '.join(own.names)}" if own.names else "")
            for node, facts, own in zip(
                cluster.nodes, cluster.facts, found or (Gpus(),) * len(cluster.nodes), strict=True
            )
        )
        assigned = [gpus.of_node(own.gpus, mode, 0, options.nproc_per_node) for own in found]
        told = told_of(assigned, [node.name for node in cluster.nodes]) if assigned else ()
        place = _Place(runtime=cluster.kind, mode=mode, mode_reason=reason, host=host, gpus=told, notes=notes)
        has_ssh = not isinstance(cluster, slurm.SlurmCluster) or cluster.has_ssh
        target = dataclasses.replace(target, ssh_user=first.user, has_ssh=has_ssh)
        watch.started(cluster)
        session = Session(cluster, target, options, mode, {}, fetch)
        return place, all_checks(session, watch, {})


def _assigned(options: SmokeOptions, found: Gpus, mode: Mode) -> tuple[tuple[Gpu, ...], ...]:
    """Return the GPUs of each node; nothing on CPUs."""
    if mode == "cpu":
        return ()
    ranks = options.nproc_per_node
    return tuple(gpus.of_node(found.gpus, mode, node, ranks) for node in range(options.nodes))


def told_of(assigned: Sequence[Sequence[Gpu]], nodes: Sequence[str] = ()) -> tuple[NodeGpu, ...]:
    """Describe each node's GPUs for the report; `nodes` has their names, if they are not node0, node1, ..."""
    names = nodes or [f"node{index}" for index in range(len(assigned))]
    return tuple(
        NodeGpu(node=name, index=gpu.index, uuid=gpu.uuid, name=gpu.name)
        for name, own in zip(names, assigned, strict=True)
        for gpu in own
    )


def _reached(
    options: SmokeOptions,
) -> contextlib.AbstractContextManager[ReachedCluster[RemoteNode] | slurm.SlurmCluster]:
    """Begin on the hosts that an option names, or on the nodes of the Slurm job."""
    run_id = secrets.token_hex(6)
    if options.runtime == "ssh":
        return remote.start(options.hosts, run_id)
    return slurm.start(options.hosts, options.slurm, options.nproc_per_node, run_id)


def all_checks(session: Session, watch: Watch, taken: Mapping[str, CheckResult]) -> tuple[CheckResult, ...]:
    """Run all checks, except those whose results are taken over."""
    results = []
    for check in CHECKS:
        watch.begun(check)
        result = taken.get(check.name) or run_check(check, session)
        watch.ended(result)
        results.append(result)
    return tuple(results)


def run_check(check: Check, session: Session) -> CheckResult:
    """Run one check. Its failure does not stop the next ones."""
    started = time.monotonic()
    before = len(session.steps)
    asked = not session.options.only or check.name in session.options.only
    why = (reason(check, session) or _not_running(check, session)) if asked else _NOT_ASKED
    summary, findings, evidence = ("", (), {}) if why else _run_with_all(check, session)
    return CheckResult(
        name=check.name,
        title=check.title,
        criterion=check.criterion,
        required=check.is_required(session),
        exchanges=check.exchanges,
        status="skipped" if why else "failed" if findings else "passed",
        summary=summary,
        reason=why,
        findings=findings,
        evidence=evidence,
        steps=tuple(session.steps[before:]),
        seconds=round(time.monotonic() - started, 3),
    )


def reason(check: Check, session: Session) -> str:
    """Say why a check cannot run; empty if it can."""
    if session.cluster.kind == "job" and not check.skip(session) and check.digits(session.options) != "none":
        return "the job carries no data to train on"
    return check.skip(session)


def _run_with_all(check: Check, session: Session) -> tuple[str, tuple[Finding, ...], dict[str, object]]:
    """Run a check with each framework of the image; returns summary, findings and evidence."""
    names = session.frameworks(check.name)
    if len(names) <= 1:
        return _run(check, session)
    summaries: list[str] = []
    findings: list[Finding] = []
    evidence: dict[str, object] = {}
    for name in names:
        session.turn = name
        summary, wrong, evidence[name] = _run(check, session)
        summaries += [f"{name}: {summary}"] if summary else []
        findings += [item.model_copy(update={"message": f"{name}: {item.message}"}) for item in wrong]
    session.turn = ""
    return "" if findings else "; ".join(summaries), tuple(findings), evidence


def _run(check: Check, session: Session) -> tuple[str, tuple[Finding, ...], dict[str, object]]:
    try:
        passed = check.run(session)
    except CheckFailed as error:
        return "", error.findings, dict(error.evidence)
    return passed.summary, (), dict(passed.evidence)


def _not_running(check: Check, session: Session) -> str:
    """Name the nodes that have ended, which makes further checks pointless; the first check reports why."""
    if check is CHECKS[0]:
        return ""
    ended = [node.name for index, node in enumerate(session.nodes) if not session.cluster.state(index)[0]]
    return f"{' and '.join(ended)} ended, see `{CHECKS[0].name}`" if ended else ""


def caveats(
    target: SmokeTarget, place: tuple[RuntimeKind, Mode], results: tuple[CheckResult, ...]
) -> tuple[str, ...]:
    """Return what a pass does not prove, on this runtime and in this mode."""
    computed = any(result.name == "collectives" and result.status != "skipped" for result in results)
    return (
        *_origin(target, results),
        # Real hosts have a network between them, which multi-gpu then uses.
        *((_CAVEATS[place[1]],) if computed and place not in _REAL else ()),
        *((_BAKED,) if target.baked_keys else ()),
    )


def _origin(target: SmokeTarget, results: tuple[CheckResult, ...]) -> tuple[str, ...]:
    """Say what an image is that imagebuilder did not build, and what nobody therefore promised."""
    if target.origin == "derived":
        count = f"{len(target.on_top)} step{'s' if target.on_top[1:] else ''}"
        return (f"derived from {target.base}, with {count} on top: {'; '.join(target.on_top)}",)
    if target.origin == "built":
        return ()
    without = [
        result.name
        for result in results
        if result.status == "skipped" and result.name in _BETWEEN and result.reason != _NOT_ASKED
    ]
    notes = ["what the image should contain is known only from --expect: its labels do not say it"]
    if target.entrypoint:
        notes.append(f"its entrypoint was not run: {shlex.join(target.entrypoint)[:200]}")
    if without:
        notes.append(f"not shown, see the reasons above: {', '.join(without)}")
    return tuple(notes)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, so that a cancelled CI job also cleans up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
