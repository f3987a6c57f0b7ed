"""Collectives on data that differs between ranks and elements, so that no wrong answer looks right.

Element i of rank r is (i mod 1009) * (r + 1) + r. All values and sums stay below 2^24: exact in fp32 too.
"""

from __future__ import annotations

import hashlib
import time

import common

SMALLEST = 4
PERIOD = 1009


def main() -> None:
    parser = common.parser()
    parser.add_argument("--largest", type=int, required=True, help="bytes of the largest tensor")
    arguments = parser.parse_args()
    torch, dist, device = common.join(arguments)
    rank, size = dist.get_rank(), dist.get_world_size()
    timings: list[dict[str, object]] = []
    digest = ""

    def data(of: int, count: int, dtype):
        base = torch.arange(count, dtype=torch.int64, device=device) % PERIOD
        return (base * (of + 1) + of).to(dtype)

    def require_equal(what: str, got, wanted) -> None:
        if got.dtype == wanted.dtype and torch.equal(got, wanted):
            return
        at = int((got != wanted).nonzero()[0])
        common.fail(
            arguments.nonce,
            f"rank {rank}: {what} of {got.numel()} {str(got.dtype).removeprefix('torch.')}: "
            f"element {at} is {got[at].item()}, must be {wanted[at].item()}",
            "the collective library gives wrong results: compare NCCL's, gloo's and the driver's versions on "
            "the nodes with the lock",
            rank=rank,
            size=size,
        )

    for dtype in (torch.int64, torch.float32):
        width = torch.tensor([], dtype=dtype).element_size()
        for length in lengths(arguments.largest):
            count = max(length // width, 1)
            everyone = [data(of, count, dtype) for of in range(size)]
            started = time.perf_counter()
            got = data(rank, count, dtype)
            dist.all_reduce(got)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            require_equal("allreduce (sum)", got, sum(everyone[1:], everyone[0]))
            if dtype == torch.int64:
                digest = hashlib.sha256(common.raw(got)).hexdigest()
            got = data(rank, count, dtype)
            dist.all_reduce(got, op=dist.ReduceOp.MAX)
            require_equal("allreduce (max)", got, everyone[-1])
            for root in range(size):
                got = data(rank, count, dtype)
                dist.broadcast(got, src=root)
                require_equal(f"broadcast from rank {root}", got, everyone[root])
            gathered = [torch.zeros_like(got) for _ in range(size)]
            dist.all_gather(gathered, data(rank, count, dtype))
            for of in range(size):
                require_equal(f"allgather, part of rank {of}", gathered[of], everyone[of])
            timings.append(
                {"dtype": str(dtype).removeprefix("torch."), "bytes": count * width, "seconds": seconds}
            )

    held = barrier(dist, rank)
    common.say(
        arguments.nonce,
        rank=rank,
        size=size,
        backend=dist.get_backend(),
        digest=digest,
        held=held,
        timings=timings,
    )
    common.leave(dist)


def lengths(largest: int) -> list[int]:
    found = []
    length = SMALLEST
    while length < largest:
        found.append(length)
        length *= 32
    return [*found, largest]


def barrier(dist, rank: int) -> float:
    """Come late as rank 0; how long the barrier held this rank."""
    dist.barrier()
    if rank == 0:
        time.sleep(0.5)
    started = time.monotonic()
    dist.barrier()
    return time.monotonic() - started


main()
