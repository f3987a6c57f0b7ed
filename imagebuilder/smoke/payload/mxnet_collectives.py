"""MXNet's KVStore for trial.py: a sum is a push and a pull. Then pushes of gradients in 2 bits."""

from __future__ import annotations

import time

import common
import mxnet_job
import numpy as np
import trial
from numpy_ops import NumpyOps

_THRESHOLD = 0.5
# What each rank pushes, and what arrives of it: the threshold or nothing. The rest is added to the next push.
_ROUNDS = ((0.6, 0.5), (0.45, 0.5), (0.3, 0.0), (-0.9, -0.5))


class LackingError(Exception):
    """The KVStore has no such operation."""


class MxnetOps(NumpyOps):
    """Sums of `dist_sync`. Its server adds floating-point numbers only, so integers travel as such."""

    backend = "dist_sync"
    # The KVStore has no bfloat16.
    kinds = ("int64", "float32")

    def __init__(self, arguments) -> None:
        self.job = mxnet_job.Job(arguments)
        self.rank, self.world_size = self.job.rank, self.job.world_size
        self.keys: dict[tuple[str, int], int] = {}

    def key(self, array) -> int:
        """Return the key for arrays of this type and length: a key keeps both."""
        what = str(array.dtype), len(array)
        if what not in self.keys:
            self.keys[what] = len(self.keys)
            self.job.store.init(self.keys[what], self.job.mx.nd.zeros(len(array), dtype=array.dtype))
        return self.keys[what]

    def all_reduce(self, array):
        sent = array.astype(np.float64) if array.dtype == np.int64 else array
        key = self.key(sent)
        result = self.job.total(key, self.job.mx.nd.array(sent, dtype=sent.dtype)).asnumpy()
        return result.astype(array.dtype)

    def none(self, *_arguments):
        raise LackingError

    all_reduce_max = broadcast = all_gather = reduce_scatter = all_to_all = none

    def lacks(self, error: Exception) -> bool:
        return isinstance(error, LackingError)

    def time_allreduce(self, array) -> float:
        key, sent = self.key(array), self.job.mx.nd.array(array, dtype=array.dtype)
        sent.wait_to_read()
        started = time.perf_counter()
        self.job.total(key, sent)
        return time.perf_counter() - started

    def barrier(self) -> None:
        self.job.barrier()

    def more(self) -> list[str]:
        """Push gradients in 2 bits: what is lost in one round arrives in a later one."""
        self.job.store.set_gradient_compression({"type": "2bit", "threshold": _THRESHOLD})
        key = len(self.keys)
        self.job.store.init(key, self.job.mx.nd.zeros(1000))
        for number, (pushed, arrives) in enumerate(_ROUNDS, 1):
            got = self.job.total(key, self.job.mx.nd.full(1000, pushed)).asnumpy()
            if not np.array_equal(got, np.full(1000, arrives * self.world_size, np.float32)):
                wrong = got[got != arrives * self.world_size][0]
                common.fail(
                    self.job.nonce,
                    f"rank {self.rank}: round {number} of pushes in 2 bits gives {wrong}, must be "
                    f"{arrives * self.world_size}",
                    "what one push leaves over has to arrive with a later one: something replaces the "
                    "KVStore's compression",
                )
        return ["2-bit compression exact"]

    def end(self) -> None:
        self.job.end()


trial.main(MxnetOps)
