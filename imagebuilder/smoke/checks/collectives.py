"""torch.distributed's collectives, on data for which no wrong answer looks right."""

from __future__ import annotations

import hashlib
import sys
from array import array

from imagebuilder.smoke.checks import torch_pinned, torch_reason
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
_LARGEST = {"cpu": 4 << 20, "cuda": 64 << 20}
# Rank 0 comes half a second late to the barrier; that long, nearly, the others have to be held.
_HELD = 0.3


def run(session: Session) -> Passed:
    largest = _LARGEST[session.device]
    found = session.launch("collectives.py", "--largest", largest, timeout=_SECONDS)
    # The ranks compared their own results; this compares them with what never passed through the image.
    wanted = expected_digest(session.size, largest)
    for entry, node in zip(found, session.nodes, strict=True):
        if entry["digest"] != wanted:
            raise CheckFailed(
                f"rank {entry['rank']}: an allreduce of {largest} bytes is not the sum of what the ranks "
                "gave",
                node=node.name,
                remedy="the collective library gives wrong results, or something replaces torch's functions",
            )
        if entry["rank"] != 0 and entry["held"] < _HELD:
            raise CheckFailed(
                f"rank {entry['rank']}: a barrier held it {entry['held']:.2f} s, though rank 0 came 0.5 s "
                "late",
                node=node.name,
                remedy="the barrier does not wait; are the ranks in one group?",
            )
    return Passed(
        summary=f"allreduce, broadcast and allgather exact from 4 B to {largest >> 20} MiB over "
        f"{found[0]['backend']}, barrier holds",
        evidence={"timings": found[0]["timings"]},
    )


def expected_digest(size: int, length: int) -> str:
    """Hash what the sum of all ranks' 64-bit numbers has to be; see payload/collectives.py."""
    period = 1009
    weight, offset = size * (size + 1) // 2, size * (size - 1) // 2
    one_period = array("q", (i * weight + offset for i in range(period)))
    count = length // 8
    whole = one_period * (count // period) + one_period[: count % period]
    if sys.byteorder == "big":
        whole.byteswap()
    return hashlib.sha256(whole.tobytes()).hexdigest()


CHECK = Check(
    name="collectives",
    title="allreduce, broadcast, allgather and barrier of int64 and fp32 tensors over all nodes",
    criterion="every element is exact on every rank; the barrier holds who comes early",
    run=run,
    skip=torch_reason,
    required=torch_pinned,
    exchanges=True,
)
