"""The same training with several numbers of ranks: the speed-up, and why some layouts cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.nodes.cluster import NodeLayout
from imagebuilder.smoke.report import Finding, Mode
from imagebuilder.smoke.session import Check, CheckFailed, Digits, Passed, Session
from imagebuilder.smoke.target import SmokeOptions

LAYOUTS = tuple(
    NodeLayout(nnodes=nodes, nproc_per_node=ranks) for nodes, ranks in ((1, 1), (1, 2), (2, 1), (2, 2))
)
CAPTION = "containers on one host; not a cluster prediction"
_MOST_RANKS = max(layout.world_size for layout in LAYOUTS)
# For an epoch of 4500 digits; 60,000 take longer.
_SECONDS = 180
_FULL_SECONDS = 1200
_NUMBERS = (
    "batch_per_rank",
    "batch_global",
    "epoch_seconds",
    "batch_median_ms",
    "batch_p95_ms",
    "samples_per_second",
    "speedup",
    "efficiency",
    "loss",
    "accuracy",
    "replica",
)


def run(session: Session) -> Passed:
    script = session.payload("scaling")
    cpus = tuple(session.facts.get("cpus", ()))
    scaling = session.options.scaling
    limit = (_FULL_SECONDS if scaling.full else _SECONDS) * scaling.epochs
    arguments: list[str | int] = ["--workload", scaling.workload, "--epochs", scaling.epochs]
    if scaling.workload == "digits":
        arguments += ["--data", session.put_digits(full=scaling.full)]
        arguments += ["--full"] if scaling.full else []
    rows: list[dict[str, Any]] = []
    for layout in LAYOUTS:
        reason = impossible(
            layout, mode=session.mode, nproc_per_node=session.layout.nproc_per_node, cpus=len(cpus)
        )
        if reason:
            rows.append(empty_row(layout, session.device, reason))
            continue
        own = own_cpus(layout, cpus)
        ranks = session.launch(script, *arguments, "--cpus", own, timeout=limit, layout=layout)
        if len({rank["end"] for rank in ranks}) != 1:
            raise CheckFailed.because(unequal(layout))
        rows.append(row(layout, ranks, rows[0] if rows else None))
    ran = [entry for entry in rows if not entry["reason"]]
    if not ran:
        raise CheckFailed("no layout could be run", remedy="; ".join(entry["reason"] for entry in rows))
    return Passed(
        summary=", ".join(
            f"{entry['nodes']}x{entry['processes']}: "
            + (f"not run, {entry['reason']}" if entry["reason"] else f"{entry['samples_per_second']:.0f}/s")
            for entry in rows
        ),
        evidence={
            "rows": rows,
            "caption": CAPTION,
            "workload": scaling.workload,
            "epochs": scaling.epochs,
            "cpus_per_rank": len(cpus) // _MOST_RANKS or 1,
        },
    )


def impossible(layout: NodeLayout, *, mode: Mode, nproc_per_node: int, cpus: int) -> str:
    """Return why a layout cannot run; empty if it can. There are always at least two nodes."""
    if mode == "one-gpu-shared" and layout.world_size > 1:
        return f"{layout.world_size} ranks would share one GPU"
    if mode == "multi-gpu" and layout.nproc_per_node > nproc_per_node:
        return f"each node was given {nproc_per_node} GPU: --nproc-per-node {layout.nproc_per_node}"
    if mode == "cpu" and layout.world_size > cpus:
        return f"{layout.world_size} ranks need a processor each, and there are {cpus}"
    return ""


def own_cpus(layout: NodeLayout, cpus: Sequence[int]) -> str:
    """Return a job's processors: a rank gets as many in every layout as in the largest that fits.

    >>> pair = Layout(nnodes=1, nproc_per_node=2)
    >>> own_cpus(pair, range(8)), own_cpus(pair, (0, 1))
    ('0,1,2,3', '0,1')
    """
    each = max(len(cpus) // _MOST_RANKS, 1)
    return ",".join(map(str, cpus[: each * layout.world_size]))


def row(
    layout: NodeLayout, ranks: Sequence[Mapping[str, Any]], reference: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the row of a layout that ran; the speed-up is relative to the first row."""
    slowest = max(ranks, key=lambda rank: rank["seconds"])
    speed = slowest["samples"] / slowest["seconds"]
    base = reference["samples_per_second"] if reference else speed
    return {
        "nodes": layout.nnodes,
        "processes": layout.nproc_per_node,
        "backend": slowest["backend"],
        "batch_per_rank": slowest["batch_per_rank"],
        "batch_global": slowest["batch_global"],
        "epoch_seconds": slowest["epoch_seconds"],
        "batch_median_ms": slowest["batch_median_ms"],
        "batch_p95_ms": slowest["batch_p95_ms"],
        "samples_per_second": speed,
        "speedup": speed / base if base else None,
        "efficiency": speed / base / layout.world_size if base else None,
        "loss": slowest["loss"],
        "accuracy": slowest["accuracy"],
        "replica": str(slowest["end"])[:12],
        "reason": "",
    }


def empty_row(layout: NodeLayout, device: str, reason: str) -> dict[str, Any]:
    """Return the row of a layout that cannot run: a reason, and no numbers."""
    return {
        "nodes": layout.nnodes,
        "processes": layout.nproc_per_node,
        "backend": "gloo" if device == "cpu" else "nccl",
        **dict.fromkeys(_NUMBERS),
        "reason": reason,
    }


def unequal(layout: NodeLayout) -> Finding:
    """Return a failure if a layout's replicas differ, because then its speed means nothing."""
    return Finding(
        node="",
        message=f"{layout}: the replicas differ after training",
        remedy="see the check `training`, which says more",
    )


def _skip(session: Session) -> str:
    return framework_reason(session, "scaling") if session.options.scaling.asked else "only with --scaling"


def _digits(options: SmokeOptions) -> Digits:
    if not options.scaling.asked or options.scaling.workload != "digits":
        return "none"
    return "all" if options.scaling.full else "few"


CHECK = Check(
    name="scaling",
    order=200,
    title="the same training on 1x1, 1x2, 2x1 and 2x2 (nodes x ranks), with the same global batch, and "
    "separate processors for each rank",
    criterion="in each layout that can run, all replicas end equal; speed is only reported",
    run=run,
    skip=_skip,
    required=lambda _promise: False,
    asked=lambda session: session.options.scaling.asked,
    digits=_digits,
    reusable=True,
)
