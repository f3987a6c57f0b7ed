"""Collectives on data that differs between ranks and elements, so that no wrong answer looks right.

Element i of rank r is (i mod 1009) * (r + 1) + r: all values and sums stay below 2^24, exact in fp32 too. In
bf16 whole numbers are exact up to 256 only: there it is (i mod 61 + r) mod k, k small enough for sums.

Each framework has a script that gives its operations to `main`: see collectives.py.
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
SIZES = {"int64": 8, "float32": 4, "bfloat16": 2}


def main(join) -> None:
    """Run and time all collectives.

    `join` gets the arguments and returns the framework's operations: collectives.py has them all. Collectives
    return new arrays. `lacks` says whether an error means that the framework does not have the collective.
    `time_allreduce` returns seconds, and `end` does not return. `kinds` names the types, where it lacks some;
    `more`, where it is there, tries what other frameworks do not have, and names it.
    """
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
    ops = join(arguments)
    trial = Trial(arguments.nonce, ops, arguments.each)
    digest = ""
    for kind in trial.kinds:
        for length in lengths(arguments.largest):
            result = trial.exchange(kind, length)
            if kind == "int64":
                digest = hashlib.sha256(ops.raw(result)).hexdigest()
    sweep, complete = trial.sweep(arguments.sweep, arguments.seconds)
    held = trial.barrier()
    common.say(
        arguments.nonce,
        rank=ops.rank,
        world_size=ops.world_size,
        backend=ops.backend,
        digest=digest,
        held=held,
        lacking=trial.what_lacks(),
        sweep=sweep,
        complete=complete,
        more=ops.more() if hasattr(ops, "more") else [],
    )
    ops.end()


class Trial:
    """The collectives that the ranks of one job run."""

    def __init__(self, nonce: str, ops, each: float) -> None:
        self.nonce, self.ops, self.each = nonce, ops, each
        self.rank, self.world_size = ops.rank, ops.world_size
        self.kinds: tuple[str, ...] = getattr(ops, "kinds", tuple(SIZES))
        # Collectives that the framework does not have, each with the types that it does not have it for.
        self.lacking: dict[str, set[str]] = {}
        self.current: tuple[str, float] | None = None
        threading.Thread(target=self.watch, daemon=True).start()

    @contextlib.contextmanager
    def within(self, what: str):
        """Name the collective that runs, for `watch`."""
        self.current = what, time.monotonic() + self.each
        try:
            yield
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

    def call(self, what: str, kind: str, count: int, collective, *arguments):
        """Run a collective; returns its result, or None if the framework does not have it."""
        name = what.partition(" ")[0]
        # A framework says so before it sends anything, and on every rank.
        if kind in self.lacking.get(name, ()):
            return None
        with self.within(f"{what} of {count} {kind}"):
            try:
                return collective(*arguments)
            except Exception as error:
                if not self.ops.lacks(error):
                    raise
                self.lacking.setdefault(name, set()).add(kind)
                return None

    def what_lacks(self) -> list[str]:
        """Name the collectives that the framework does not have, with their types if it has others."""
        return sorted(
            name if kinds == set(self.kinds) else f"{name} of {kind}"
            for name, kinds in self.lacking.items()
            for kind in (kinds if kinds != set(self.kinds) else [""])
        )

    def data(self, of: int, count: int, kind: str):
        index = self.ops.index(count)
        if kind == "bfloat16":
            most = max(EXACT_IN_BF16 // self.world_size, 2)
            return self.ops.cast((index % SHORT_PERIOD + of) % most, kind)
        return self.ops.cast(index % PERIOD * (of + 1) + of, kind)

    def exchange(self, kind: str, length: int):
        """Run every collective on tensors of one type and length; return the sum."""
        ops = self.ops
        count = max(length // SIZES[kind], 1)
        everyone = [self.data(of, count, kind) for of in range(self.world_size)]
        own = everyone[self.rank]
        summed = self.call("allreduce (sum)", kind, count, ops.all_reduce, own)
        self.require_equal("allreduce (sum)", summed, sum(everyone[1:], everyone[0]))
        greatest = everyone[0]
        for other in everyone[1:]:
            greatest = ops.maximum(greatest, other)
        most = self.call("maximum", kind, count, ops.all_reduce_max, own)
        self.require_equal("allreduce (max)", most, greatest)
        for root in range(self.world_size):
            name = f"broadcast from rank {root}"
            self.require_equal(name, self.call(name, kind, count, ops.broadcast, own, root), everyone[root])
        gathered = self.call("allgather", kind, count, ops.all_gather, own)
        for of in range(self.world_size if gathered is not None else 0):
            self.require_equal(f"allgather, part of rank {of}", gathered[of], everyone[of])
        self.scatter(kind, max(count // self.world_size, 1))
        return summed

    def scatter(self, kind: str, count: int) -> None:
        """Run the collectives in which each rank gets its part: parts of `count` elements."""
        ops = self.ops
        whole = count * self.world_size
        everyone = [self.data(of, whole, kind) for of in range(self.world_size)]
        part = slice(self.rank * count, (self.rank + 1) * count)
        reduced = self.call("reduce_scatter", kind, whole, ops.reduce_scatter, everyone[self.rank])
        self.require_equal(
            "reduce_scatter", reduced, sum((other[part] for other in everyone[1:]), everyone[0][part])
        )
        moved = self.call("all_to_all", kind, whole, ops.all_to_all, everyone[self.rank])
        self.require_equal("all_to_all", moved, ops.join([other[part] for other in everyone]))

    def require_equal(self, what: str, got, wanted) -> None:
        """End this rank with an error if a collective gave something else; None: it did not run."""
        if got is None:
            return
        kinds = self.ops.kind(got), self.ops.kind(wanted)
        at = self.ops.first_difference(got, wanted) if kinds[0] == kinds[1] else 0
        if at is None:
            return
        wrong = (
            f"element {at} is {got[at].item()}, must be {wanted[at].item()}"
            if kinds[0] == kinds[1]
            else f"the result is of type {kinds[0]}, must be {kinds[1]}"
        )
        common.fail(
            self.nonce,
            f"rank {self.rank}: {what} of {len(wanted)} {kinds[1]}: {wrong}",
            "the collective library gives wrong results: compare NCCL's, gloo's and the driver's versions on "
            "the nodes with the lock",
            rank=self.rank,
            world_size=self.world_size,
        )

    def sweep(self, largest: int, limit: float):
        """Time allreduces of fp32, each four times as large as the last, as far as the time allows."""
        until = time.monotonic() + limit
        rows: list[dict[str, object]] = []
        for length in lengths(largest, 4):
            # Rank 0's clock decides for all ranks.
            if self.values(float(time.monotonic() >= until))[0]:
                return rows, False
            ones = self.ops.ones(length // 4)
            runs = 20 if length <= 1 << 16 else 5 if length <= 1 << 22 else 3
            times = []
            for _ in range(runs + 1):
                with self.within(f"allreduce of {length} bytes"):
                    times.append(self.ops.time_allreduce(ones))
            # The first one prepares connections and buffers. A collective takes as long as its slowest rank.
            slowest = max(self.values(statistics.median(times[1:])))
            rows.append({"bytes": length, "dtype": "float32", "seconds": slowest})
        return rows, True

    def values(self, own: float) -> list[float]:
        """Return what all ranks gave, in single precision: their sum has each in a place of its own."""
        place = self.ops.cast(self.ops.index(self.world_size) == self.rank, "float32")
        with self.within("allreduce of times"):
            return [float(value) for value in self.ops.all_reduce(place * own)]

    def barrier(self) -> float:
        """Let rank 0 come late to a barrier. Return how long the barrier held this rank."""
        with self.within("barrier"):
            self.ops.barrier()
        if self.rank == 0:
            time.sleep(0.5)
        with self.within("barrier"):
            started = time.monotonic()
            self.ops.barrier()
            return time.monotonic() - started


def lengths(largest: int, factor: int = 32) -> list[int]:
    found = []
    length = SMALLEST
    while length < largest:
        found.append(length)
        length *= factor
    return [*found, largest]
