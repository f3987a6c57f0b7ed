"""Data-parallel training on handwritten digits: replicas stay equal to each other and to one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 180
ACCURACY = 0.90
# Both compute the same sums in a different order. What remains is rounding in double precision, about 1e-15
# of the largest weight after training.
DISTANCE = 1e-9
_HALF = 0.5


def run(session: Session) -> Passed:
    ranks = session.launch(
        session.payload("training"), "--role", "ddp", "--data", session.put_digits(), timeout=_SECONDS
    )
    findings = judge(ranks, [session.node_of(entry["rank"]) for entry in ranks])
    if findings:
        raise CheckFailed.because(*findings)
    first = ranks[0]
    return Passed(
        summary=f"loss {first['first_loss']:.2f} to {first['last_loss']:.2f}, accuracy "
        f"{first['accuracy']:.1%}, "
        f"replicas equal, {first['distance']:.0e} from one process",
        evidence={
            "losses": mean_losses([entry["losses"] for entry in ranks]),
            "ranks": [{key: value for key, value in entry.items() if key != "losses"} for entry in ranks],
        },
    )


def judge(ranks: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> list[Finding]:
    """Return what is wrong with the answers of a DDP job's ranks; the first entry is rank 0."""
    findings = []

    def found(node: str, message: str, remedy: str) -> None:
        findings.append(Finding(node=node, message=message, remedy=remedy))

    if len({entry["own"] for entry in ranks}) != len(ranks):
        found(
            "",
            "ranks that were seeded differently began with equal weights",
            "something in the image fixes the random seed",
        )
    if len({entry["start"] for entry in ranks}) != 1:
        found(
            "",
            "the framework did not give all ranks the first one's weights",
            "its broadcast at the start does not work, or something replaces it (torch: "
            "DistributedDataParallel)",
        )
    if len({entry["end"] for entry in ranks}) != 1:
        found(
            "",
            "the replicas differ after training: gradients are not synchronised",
            "compare the framework's and NCCL's versions between the nodes; does something replace its "
            "collectives (torch.distributed)?",
        )
    for entry, node in zip(ranks, nodes, strict=True):
        if not entry["last_loss"] < _HALF * entry["first_loss"]:
            found(
                node,
                f"the loss went from {entry['first_loss']:.3f} to {entry['last_loss']:.3f}: nothing was "
                "learnt",
                "the framework computes wrongly here; does the check `link` pass?",
            )
        if not entry["accuracy"] >= ACCURACY:
            found(
                node,
                f"accuracy on unseen digits is {entry['accuracy']:.1%}, and at least {ACCURACY:.0%} is "
                "expected",
                "the framework computes wrongly here, or the gradients' average is wrong",
            )
    distance = ranks[0]["distance"]
    if distance is None or not distance <= DISTANCE:
        found(
            nodes[0],
            f"the weights differ by {distance} from those of one process with whole batches (allowed: "
            f"{DISTANCE:g})",
            "gradients are summed instead of averaged, samples are seen twice, or a kernel is not "
            "deterministic",
        )
    return findings


def mean_losses(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the loss at each logged step, mean over the ranks."""
    return [round(sum(step) / len(step), 5) for step in zip(*ranks, strict=True)]


CHECK = Check(
    name="training",
    order=160,
    title="data-parallel training on 4500 handwritten digits (torch: DistributedDataParallel), and the same "
    "in one process",
    criterion="from different weights, all ranks end with equal ones, bit for bit; the loss halves; "
    f"accuracy on 500 unseen digits is at least {ACCURACY:.0%}; one process with whole batches ends within "
    f"{DISTANCE:g} of it",
    run=run,
    skip=lambda session: framework_reason(session, "training"),
    required=lambda promise: promise.asked and promise.framework("training"),
    digits=lambda _options: "few",
    exchanges=True,
    reusable=True,
)
