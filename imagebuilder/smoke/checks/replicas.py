"""Checkpoints of all ranks: parameters are the same to the bit, batch normalisation's averages are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import torch_pinned, torch_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
NO_SYNC = "torch has SyncBatchNorm for GPUs only"


def run(session: Session) -> Passed:
    ranks = session.launch("replicas.py", "--folder", session.cluster.shared, timeout=_SECONDS)
    found = ranks[0]["found"]
    findings = [
        finding
        for norm, others in found.items()
        for rank, compared in others.items()
        for finding in judge(norm, int(rank), compared, session.node_of(int(rank)))
    ]
    if findings:
        raise CheckFailed.because(*findings)
    plain = next(iter(found["plain"].values()))
    sync = "; with SyncBatchNorm equal" if "sync" in found else ""
    return Passed(
        summary=f"{len(ranks)} checkpoints: {plain['parameters']['compared']} parameters identical, "
        f"{plain['buffers']['differ']} of {plain['buffers']['compared']} buffers each rank's own{sync}",
        evidence={**found, **({} if "sync" in found else {"sync": f"not tried: {NO_SYNC}"})},
    )


def judge(norm: str, rank: int, compared: Mapping[str, Any], node: str) -> list[Finding]:
    """Say what is wrong between rank 0's checkpoint and another rank's; `norm` is `plain` or `sync`.

    Only the running averages may differ in a plain one, and there they have to: the data did.
    """
    findings = []

    def found(message: str, remedy: str) -> None:
        findings.append(Finding(node=node, message=f"the checkpoint of rank {rank} {message}", remedy=remedy))

    lacking = [*compared["only_in_first"], *compared["only_in_second"]]
    if lacking:
        found(
            f"has other entries than rank 0's: {', '.join(lacking[:5])}", "the ranks run different programs"
        )
    for group in ("parameters", "others"):
        different = compared[group]["different"]
        if different:
            named = "; ".join(_described(entry) for entry in different[:3])
            found(
                f"differs from rank 0's in {compared[group]['differ']} of {compared[group]['compared']} "
                f"{'parameters' if group == 'parameters' else 'values of the optimizer'}: {named}",
                "gradients are not synchronised, or the ranks' processors compute differently",
            )
    buffers = {entry["name"].rpartition(".")[2] for entry in compared["buffers"]["different"]}
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
    if "max_abs" not in entry:
        return f"{entry['name']} is {entry['first']} and {entry['second']}"
    gap = "not a number" if entry["max_abs"] is None else f"by up to {entry['max_abs']:.3g}"
    return f"{entry['name']} ({entry['elements']} elements, {gap})"


CHECK = Check(
    name="replicas",
    title="a checkpoint from every rank of a DDP job with batch normalisation, each compared with rank 0's",
    criterion="parameters and optimizer are identical; running averages differ with BatchNorm, and with "
    "SyncBatchNorm (on GPUs) they do not",
    run=run,
    skip=torch_reason,
    required=torch_pinned,
    exchanges=True,
)
