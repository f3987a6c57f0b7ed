"""Collectives on data that differs between ranks and elements, so that no wrong answer looks right.

Element i of rank r is (i mod 1009) * (r + 1) + r: all values and sums stay below 2^24, exact in fp32 too. In
bf16 whole numbers are exact up to 256 only: there it is (i mod 61 + r) mod k, k small enough for sums.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import threading
import time

import common

SMALLEST = 4
PERIOD = 1009
SHORT_PERIOD = 61
EXACT_IN_BF16 = 256


def main() -> None:
    parser = common.parser()
    parser.add_argument("--largest", type=int, required=True, help="bytes of the largest tensor of each type")
    parser.add_argument(
        "--sweep", type=int, required=True, help="bytes of the largest allreduce that is timed"
    )
    parser.add_argument(
        "--seconds", type=float, required=True, help="when to begin no further size of the sweep"
    )
    parser.add_argument("--each", type=float, required=True, help="seconds after which a collective hangs")
    arguments = parser.parse_args()
    torch, dist, device = common.join(arguments)
    trial = Trial(arguments.nonce, torch, dist, device, arguments.each)
    digest = ""
    for dtype in (torch.int64, torch.float32, torch.bfloat16):
        for length in lengths(arguments.largest):
            result = trial.exchange(dtype, length)
            if dtype == torch.int64:
                digest = hashlib.sha256(common.raw(result)).hexdigest()
    sweep, complete = trial.sweep(arguments.sweep, arguments.seconds)
    held = trial.barrier()
    common.say(
        arguments.nonce,
        rank=trial.rank,
        world_size=trial.world_size,
        backend=dist.get_backend(),
        digest=digest,
        held=held,
        lacking=sorted(trial.lacking),
        sweep=sweep,
        complete=complete,
    )
    common.end(dist)


class Trial:
    """One process group, and the collectives that its ranks run."""

    def __init__(self, nonce: str, torch, dist, device, each: float) -> None:
        self.nonce, self.torch, self.dist, self.device, self.each = nonce, torch, dist, device, each
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        # Collectives that torch's backend does not have.
        self.lacking: set[str] = set()
        self.current: tuple[str, float] | None = None
        threading.Thread(target=self.watch, daemon=True).start()

    @contextlib.contextmanager
    def within(self, what: str):
        """Name the collective that runs, for `watch`, and wait for its result."""
        self.current = what, time.monotonic() + self.each
        try:
            yield
            # NCCL's collectives only start: the result is there when the GPU has done its work.
            self.wait()
        except RuntimeError as error:
            if "does not support" not in str(error):
                raise
            # torch says so before it sends anything, and on every rank.
            self.lacking.add(what.partition(" ")[0])
        finally:
            self.current = None

    def watch(self) -> None:
        """End this rank if a collective hangs: the thread that waits in it cannot be interrupted."""
        while True:
            time.sleep(0.5)
            current = self.current
            if current and time.monotonic() > current[1]:
                self.hang(current[0])

    def hang(self, what: str) -> None:
        common.say(
            self.nonce,
            error=f"rank {self.rank}: {what} did not end within {self.each:g} s",
            remedy="if other collectives work, the network plugin or NCCL's algorithm for this one hangs: "
            "try another release of either; else look for a firewall between the nodes",
            rank=self.rank,
            world_size=self.world_size,
        )
        os._exit(1)

    def data(self, of: int, count: int, dtype):
        index = self.torch.arange(count, dtype=self.torch.int64, device=self.device)
        if dtype == self.torch.bfloat16:
            most = max(EXACT_IN_BF16 // self.world_size, 2)
            return ((index % SHORT_PERIOD + of) % most).to(dtype)
        return (index % PERIOD * (of + 1) + of).to(dtype)

    def exchange(self, dtype, length: int):
        """Run every collective on tensors of one type and length; return the sum."""
        dist = self.dist
        count = max(length // self.torch.tensor([], dtype=dtype).element_size(), 1)
        everyone = [self.data(of, count, dtype) for of in range(self.world_size)]
        size = f"of {count} {str(dtype).removeprefix('torch.')}"
        summed = self.data(self.rank, count, dtype)
        with self.within(f"allreduce (sum) {size}"):
            dist.all_reduce(summed)
        self.require_equal("allreduce (sum)", summed, sum(everyone[1:], everyone[0]))
        got = self.data(self.rank, count, dtype)
        with self.within(f"allreduce (max) {size}"):
            dist.all_reduce(got, op=dist.ReduceOp.MAX)
        wanted = everyone[0]
        for other in everyone[1:]:
            wanted = self.torch.maximum(wanted, other)
        self.require_equal("allreduce (max)", got, wanted)
        for root in range(self.world_size):
            got = self.data(self.rank, count, dtype)
            with self.within(f"broadcast from rank {root} {size}"):
                dist.broadcast(got, src=root)
            self.require_equal(f"broadcast from rank {root}", got, everyone[root])
        gathered = [self.torch.zeros_like(got) for _ in range(self.world_size)]
        with self.within(f"allgather {size}"):
            dist.all_gather(gathered, self.data(self.rank, count, dtype))
        for of in range(self.world_size):
            self.require_equal(f"allgather, part of rank {of}", gathered[of], everyone[of])
        self.scatter(dtype, max(count // self.world_size, 1))
        return summed

    def scatter(self, dtype, count: int) -> None:
        """Run the collectives in which each rank gets its part: parts of `count` elements."""
        everyone = [self.data(of, count * self.world_size, dtype) for of in range(self.world_size)]
        own = slice(self.rank * count, (self.rank + 1) * count)
        size = f"of {count * self.world_size} {str(dtype).removeprefix('torch.')}"
        if "reduce_scatter" not in self.lacking:
            got = self.torch.zeros_like(everyone[0][own])
            with self.within(f"reduce_scatter {size}"):
                self.dist.reduce_scatter_tensor(got, everyone[self.rank])
        if "reduce_scatter" not in self.lacking:
            self.require_equal(
                "reduce_scatter", got, sum((other[own] for other in everyone[1:]), everyone[0][own])
            )
        if "all_to_all" not in self.lacking:
            got = self.torch.zeros_like(everyone[0])
            with self.within(f"all_to_all {size}"):
                self.dist.all_to_all_single(got, everyone[self.rank])
        if "all_to_all" not in self.lacking:
            self.require_equal("all_to_all", got, self.torch.cat([other[own] for other in everyone]))

    def require_equal(self, what: str, got, wanted) -> None:
        if got.dtype == wanted.dtype and self.torch.equal(got, wanted):
            return
        types = [str(tensor.dtype).removeprefix("torch.") for tensor in (got, wanted)]
        if got.dtype == wanted.dtype:
            at = int((got != wanted).nonzero()[0])
            wrong = f"element {at} is {got[at].item()}, must be {wanted[at].item()}"
        else:
            wrong = f"the result is of type {types[0]}, must be {types[1]}"
        common.fail(
            self.nonce,
            f"rank {self.rank}: {what} of {got.numel()} {types[1]}: {wrong}",
            "the collective library gives wrong results: compare NCCL's, gloo's and the driver's versions on "
            "the nodes with the lock",
            rank=self.rank,
            world_size=self.world_size,
        )

    def sweep(self, largest: int, limit: float):
        """Time allreduces of fp32, each four times as large as the last, as far as the time allows."""
        torch, dist = self.torch, self.dist
        until = time.monotonic() + limit
        rows: list[dict[str, object]] = []
        for length in lengths(largest, 4):
            # Rank 0's clock decides for all ranks.
            go = torch.tensor([int(self.rank != 0 or time.monotonic() < until)], device=self.device)
            with self.within("broadcast before a timed allreduce"):
                dist.broadcast(go, src=0)
            if not int(go):
                return rows, False
            tensor = torch.ones(length // 4, dtype=torch.float32, device=self.device)
            runs = 20 if length <= 1 << 16 else 5 if length <= 1 << 22 else 3
            with self.within(f"allreduce of {length} bytes"):
                dist.all_reduce(tensor)
            times = [self.timed(tensor) for _ in range(runs)]
            # The time of a collective is that of its slowest rank.
            last = torch.tensor([statistics.median(times)], dtype=torch.float64, device=self.device)
            with self.within("allreduce (max) of a time"):
                dist.all_reduce(last, op=dist.ReduceOp.MAX)
            rows.append({"bytes": length, "dtype": "float32", "seconds": float(last)})
        return rows, True

    def timed(self, tensor) -> float:
        # Else the values would grow with every allreduce.
        tensor.fill_(1.0)
        self.wait()
        with self.within(f"allreduce of {tensor.numel() * tensor.element_size()} bytes"):
            started = time.perf_counter()
            self.dist.all_reduce(tensor)
            self.wait()
            return time.perf_counter() - started

    def barrier(self) -> float:
        """Let rank 0 come late to a barrier. Return how long the barrier held this rank."""
        with self.within("barrier"):
            self.dist.barrier()
        if self.rank == 0:
            time.sleep(0.5)
        with self.within("barrier"):
            started = time.monotonic()
            self.dist.barrier()
            return time.monotonic() - started

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def lengths(largest: int, factor: int = 32) -> list[int]:
    found = []
    length = SMALLEST
    while length < largest:
        found.append(length)
        length *= factor
    return [*found, largest]


main()
