"""The framework's collectives: whether they are exact, and how fast. Wrong results cannot look right."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
# A single collective that takes longer hangs. It is named, which the end of the whole check could not do.
_EACH = 30
# In the order in which they run.
_NAMES = ("allreduce", "broadcast", "allgather", "reduce_scatter", "all_to_all")
# The largest tensor that is compared element by element. On gloo, larger ones would only take longer.
_LARGEST = {"cpu": 1 << 22, "cuda": 1 << 26}
# The largest allreduce that is timed, and the seconds after which no further size is started.
_SWEEP = 1 << 26
_SWEEP_SECONDS = {"cpu": 6, "cuda": 20}
# Rank 0 enters the barrier half a second late, so the barrier must hold the others for almost as long.
_HELD = 0.3


def run(session: Session) -> Passed:
    largest = _LARGEST[session.device]
    each = round(_EACH * session.options.patience)
    sizes = ("--largest", largest, "--sweep", _SWEEP, "--seconds", _SWEEP_SECONDS[session.device])
    found = session.launch(session.payload("collectives"), *sizes, "--each", each, timeout=_SECONDS)
    rows = sweep(found[0]["sweep"], session.world_size)
    findings = [*judge(found, largest, session.node_of), *judge_speed(rows, session.options.min_busbw)]
    if findings:
        raise CheckFailed.because(*findings)
    best, backend = rows[-1], found[0]["backend"]
    # gloo lacked some in older releases of torch. A loop of TensorFlow has only sums and gathering, and
    # MXNet's KVStore has sums.
    lacking = [name for name in _NAMES[1:] if any(name in entry["lacking"] for entry in found)]
    complete = all(entry["complete"] for entry in found)
    return Passed(
        summary=f"{ran(lacking)} exact from 4 B to {largest >> 20} MiB over "
        f"{backend}, barrier holds; {best['busbw_gbs']:.2f} GB/s at {_size(best['bytes'])}"
        + "".join(f"; {backend} has no {name} here" for name in lacking)
        + "".join(f"; {text}" for text in found[0]["more"]),
        evidence={
            "sweep": rows,
            "sweep stopped": "" if complete else f"after {_SWEEP_SECONDS[session.device]} s",
            "backend": backend,
        },
    )


def ran(lacking: Sequence[str]) -> str:
    """Name the collectives that ran: all but those that the backend does not have.

    >>> ran(["all_to_all"])
    'allreduce, broadcast, allgather and reduce_scatter'
    >>> ran(_NAMES[1:])
    'allreduce'
    """
    *names, last = (name for name in _NAMES if name not in lacking)
    return f"{', '.join(names)} and {last}" if names else last


def judge(ranks: Sequence[Mapping[str, Any]], largest: int, node_of: Callable[[int], str]) -> list[Finding]:
    """Return what is wrong with the answers of the ranks; `node_of` returns the node of a rank.

    The ranks have compared their own results. This compares them with values computed outside the image.
    """
    findings = []
    wanted = expected_digest(len(ranks), largest)
    for entry in ranks:
        rank = entry["rank"]
        if entry["digest"] != wanted:
            findings.append(
                Finding(
                    node=node_of(rank),
                    message=f"rank {rank}: an allreduce of {largest} bytes is not the sum of what the ranks "
                    "gave",
                    remedy="the collective library gives wrong results, or something replaces the "
                    "framework's functions",
                )
            )
        if rank != 0 and entry["held"] < _HELD:
            findings.append(
                Finding(
                    node=node_of(rank),
                    message=f"rank {rank}: a barrier held it {entry['held']:.2f} s, though rank 0 came 0.5 s "
                    "late",
                    remedy="the barrier does not wait: the ranks may not be in one group",
                )
            )
    return findings


def judge_speed(rows: Sequence[Mapping[str, Any]], floor: float) -> list[Finding]:
    """Return a failure if the largest allreduce is slower than the floor, in 10^9 bytes a second."""
    if not floor or not rows or rows[-1]["busbw_gbs"] >= floor:
        return []
    last = rows[-1]
    return [
        Finding(
            node="",
            message=f"an allreduce of {_size(last['bytes'])} reaches a bus bandwidth of "
            f"{last['busbw_gbs']:.3f} GB/s, and --min-busbw asks for {floor:g}",
            remedy="the transport is slower than expected: see the check `transport`, and whether other jobs "
            "use the network",
        )
    ]


def sweep(timings: Sequence[Mapping[str, Any]], world_size: int) -> list[dict[str, Any]]:
    """Compute bandwidths as nccl-tests does: each of n ranks sends 2(n-1)/n of an allreduce's bytes."""
    rows = []
    for timing in timings:
        algbw = timing["bytes"] / timing["seconds"] / 1e9
        busbw = algbw * 2 * (world_size - 1) / world_size
        rows.append({**timing, "algbw_gbs": algbw, "busbw_gbs": busbw})
    return rows


def expected_digest(world_size: int, length: int) -> str:
    """Return the hash of the correct sum of all ranks' 64-bit numbers; see payload/collectives.py."""
    period = 1009
    weight, offset = world_size * (world_size + 1) // 2, world_size * (world_size - 1) // 2
    one_period = array("q", (i * weight + offset for i in range(period)))
    count = length // 8
    whole = one_period * (count // period) + one_period[: count % period]
    if sys.byteorder == "big":
        whole.byteswap()
    return hashlib.sha256(whole.tobytes()).hexdigest()


def _size(length: int) -> str:
    return f"{length >> 20} MiB" if length >= 1 << 20 else f"{length} B"


CHECK = Check(
    name="collectives",
    order=130,
    title="allreduce, broadcast, allgather, reduce_scatter, all_to_all and barrier of int64, fp32 and bf16 "
    "tensors over all ranks; a sweep of allreduces up to 64 MiB, as far as time allows",
    criterion="every element is exact on every rank; no collective takes longer than 30 s; the barrier "
    "holds ranks that come early; bus bandwidth "
    "is at least --min-busbw, if given",
    run=run,
    skip=lambda session: framework_reason(session, "collectives"),
    required=lambda promise: promise.framework("collectives"),
    exchanges=True,
    reusable=True,
)
