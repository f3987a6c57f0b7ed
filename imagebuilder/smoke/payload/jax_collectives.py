"""JAX's collectives, for trial.py."""

from __future__ import annotations

import time

import jax_job
import trial
from numpy_ops import NumpyOps


class JaxOps(NumpyOps):
    """The collectives of jax.lax over all ranks, over NCCL on GPUs and over gloo on CPUs."""

    def __init__(self, arguments) -> None:
        self.jax, mesh = jax_job.join(arguments)
        self.lax = self.jax.lax
        self.rank, self.world_size = self.jax.process_index(), self.jax.process_count()
        self.backend = "nccl" if arguments.device == "cuda" else "gloo"
        self.ranks = jax_job.Ranks(self.jax, mesh)
        self.count = 0

    def sum(self, array):
        return self.lax.psum(array, "ranks")

    def greatest(self, array):
        return self.lax.pmax(array, "ranks")

    def gather(self, array):
        return self.lax.all_gather(array, "ranks")

    def scatter(self, array):
        return self.lax.psum_scatter(array, "ranks", tiled=True)

    def exchange(self, array):
        return self.lax.all_to_all(array, "ranks", 0, 0, tiled=True)

    def run(self, function, array):
        return self.ranks.own(self.ranks.each(function)(self.ranks.spread(array)))

    def all_reduce(self, array):
        return self.run(self.sum, array)

    def all_reduce_max(self, array):
        return self.run(self.greatest, array)

    def broadcast(self, array, root: int):
        from jax.experimental import multihost_utils

        return multihost_utils.broadcast_one_to_all(array, is_source=self.rank == root)

    def all_gather(self, array):
        return self.run(self.gather, array)

    def reduce_scatter(self, array):
        return self.run(self.scatter, array)

    def all_to_all(self, array):
        return self.run(self.exchange, array)

    def lacks(self, error: Exception) -> bool:
        return "UNIMPLEMENTED" in str(error)

    def time_allreduce(self, array) -> float:
        spread, summed = self.ranks.spread(array), self.ranks.each(self.sum)
        started = time.perf_counter()
        summed(spread).block_until_ready()
        return time.perf_counter() - started

    def barrier(self) -> None:
        from jax.experimental import multihost_utils

        self.count += 1
        multihost_utils.sync_global_devices(f"barrier {self.count}")


trial.main(JaxOps)
