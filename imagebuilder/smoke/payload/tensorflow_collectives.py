"""TensorFlow's collectives for a training loop, for trial.py: sums, and gathering."""

from __future__ import annotations

import time

import tensorflow_job
import trial
from numpy_ops import NumpyOps


class LackingError(Exception):
    """TensorFlow has no such collective for a training loop."""


class TensorflowOps(NumpyOps):
    """The collectives of MultiWorkerMirroredStrategy, over NCCL on GPUs and over gRPC's ring on CPUs."""

    def __init__(self, arguments) -> None:
        self.tf, self.strategy = tensorflow_job.join(arguments)
        self.rank = self.strategy.cluster_resolver.task_id
        self.world_size = self.strategy.num_replicas_in_sync
        self.backend = "nccl" if arguments.device == "cuda" else "grpc"
        # Compiled once for each type, whatever the length.
        self.sum = self.tf.function(self.summed, reduce_retracing=True)
        self.gather = self.tf.function(self.gathered, reduce_retracing=True)

    def summed(self, tensor):
        return self.strategy.run(self.sum_of, args=(tensor,))

    def sum_of(self, tensor):
        # A copy, because TensorFlow asks a tensor for its device, and one from outside has none.
        return self.tf.distribute.get_replica_context().all_reduce("SUM", self.tf.identity(tensor))

    def gathered(self, tensor):
        return self.strategy.run(self.gather_of, args=(tensor,))

    def gather_of(self, tensor):
        return self.tf.distribute.get_replica_context().all_gather(self.tf.identity(tensor), axis=0)

    def all_reduce(self, array):
        return self.sum(self.tf.constant(array)).numpy()

    def all_gather(self, array):
        return self.gather(self.tf.constant(array)).numpy().reshape(self.world_size, -1)

    def none(self, *_arguments):
        raise LackingError

    all_reduce_max = broadcast = reduce_scatter = all_to_all = none

    def lacks(self, error: Exception) -> bool:
        # Gathering refuses bfloat16 by its type.
        return isinstance(error, LackingError) or "not in list of allowed values" in str(error)

    def time_allreduce(self, array) -> float:
        tensor = self.tf.constant(array)
        started = time.perf_counter()
        self.sum(tensor).numpy()
        return time.perf_counter() - started

    def barrier(self) -> None:
        self.all_reduce(self.ones(1))

    def end(self) -> None:
        tensorflow_job.end(self.tf, self.strategy)


trial.main(TensorflowOps)
