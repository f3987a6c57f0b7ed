"""Checkpoints of all ranks: parameters are identical, running averages of batch normalisation are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
# Rounding in double precision: several GPUs add up the same gradients in another order.
_DISTANCE = 1e-9
_GROUPS = {("parameter",): "parameters", ("optimizer", "value"): "values of the optimizer"}
_NO_GPU = "on CPUs it only calls the module"


def run(session: Session) -> Passed:
    ranks = session.launch(session.payload("replicas"), "--folder", session.cluster.shared, timeout=_SECONDS)
    found = ranks[0]["found"]
    findings = [
        finding
        for norm, others in found.items()
        for rank, compared in others.items()
        for finding in judge(norm, int(rank), compared, session.node_of(int(rank)))
    ]
    findings += judge_threaded(ranks[0]["threaded"], session.node_of(0))
    if findings:
        raise CheckFailed.because(*findings)
    counts = next(iter(found["plain"].values()))["counts"]
    parameters, buffers = counts["parameter"], counts["buffer"]
    sync = "; with SyncBatchNorm equal" if "sync" in found else ""
    gpus = ranks[0]["threaded"]["gpus"]
    return Passed(
        summary=f"{len(ranks)} checkpoints: {parameters['equal']} parameters identical, "
        f"{buffers['differ']} of {buffers['differ'] + buffers['equal']} buffers differ as they should{sync}"
        + (f"; DataParallel on {gpus} GPUs of one process" if gpus > 1 else ""),
        evidence={
            **found,
            **({} if "sync" in found else {"sync": f"refused by torch: {ranks[0]['refused']}"}),
            "DataParallel": {**ranks[0]["threaded"], **({} if gpus else {"note": _NO_GPU})},
        },
    )


def judge_threaded(threaded: Mapping[str, Any], node: str) -> list[Finding]:
    """Return a failure if DataParallel computed other gradients than the module alone."""
    if threaded["distance"] <= _DISTANCE:
        return []
    message = (
        f"DataParallel on {threaded['gpus']} GPUs computes other gradients than the module alone: they "
        f"differ by {threaded['distance']:.3g} of the largest"
    )
    remedy = "copies between the GPUs of this node arrive broken: is the IOMMU on, or ACS on their switches?"
    return [Finding(node=node, message=message, remedy=remedy)]


def judge(norm: str, rank: int, compared: Mapping[str, Any], node: str) -> list[Finding]:
    """Return what is wrong between rank 0's checkpoint and another rank's; `norm` is `plain` or `sync`.

    With plain batch normalisation the running averages must differ, because the data did, and nothing else
    may.
    """
    findings = []

    def found(message: str, remedy: str) -> None:
        findings.append(Finding(node=node, message=f"the checkpoint of rank {rank} {message}", remedy=remedy))

    different = compared["differences"]
    lacking = [entry["name"] for entry in different if entry["what"] in ("missing", "extra")]
    if lacking:
        found(
            f"has other entries than rank 0's: {', '.join(lacking[:5])}", "the ranks run different programs"
        )
    for kinds, words in _GROUPS.items():
        entries = [entry for entry in different if entry["kind"] in kinds and entry["name"] not in lacking]
        if entries:
            counts = [compared["counts"][kind] for kind in kinds]
            total = sum(count["equal"] + count["differ"] for count in counts)
            named = "; ".join(_described(entry) for entry in entries[:3])
            found(
                f"differs from rank 0's in {len(entries)} of {total} {words}: {named}",
                "gradients are not synchronised, or the ranks' processors compute differently",
            )
    buffers = {entry["name"].rpartition(".")[2] for entry in different if entry["kind"] == "buffer"}
    if norm == "sync" and buffers:
        found(
            f"differs in SyncBatchNorm's {', '.join(sorted(buffers))}",
            "SyncBatchNorm does not take the averages over all ranks: does its allgather work?",
        )
    if norm == "plain" and "num_batches_tracked" in buffers:
        found("counts other batches than rank 0's", "a rank skipped steps that others made")
    if norm == "plain" and not buffers & {"running_mean", "running_var"}:
        found(
            "has the same running averages as rank 0's, though the data differed",
            "all ranks were given the same data, or something replaces BatchNorm",
        )
    return findings


def _described(entry: Mapping[str, Any]) -> str:
    if entry["what"] != "numbers":
        return f"{entry['name']} is {entry['first']} and {entry['other']}"
    gap = "not a number" if entry["max_abs"] is None else f"by up to {entry['max_abs']:.3g}"
    return f"{entry['name']} ({entry['count']} elements, {gap})"


CHECK = Check(
    name="replicas",
    order=170,
    title="a checkpoint from every rank of a DDP job with batch normalisation, each compared with rank 0's; "
    "DataParallel in one process",
    criterion="parameters and optimizer are identical; running averages differ with BatchNorm, and with "
    "SyncBatchNorm (on GPUs) they do not; DataParallel gives the module's own gradients",
    run=run,
    skip=lambda session: (
        framework_reason(session, "replicas")
        or ("" if session.cluster.shared else "no folder is known that all nodes share")
    ),
    required=lambda promise: promise.shared and promise.framework("replicas"),
    exchanges=True,
    reusable=True,
)
