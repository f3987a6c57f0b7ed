"""torch.distributed's collectives, for trial.py. Without numpy, which the image may lack."""

from __future__ import annotations

import time

import common
import trial


class TorchOps:
    """The operations of torch.distributed, over NCCL on GPUs and over gloo on CPUs."""

    def __init__(self, arguments) -> None:
        self.torch, self.dist, self.device = common.join(arguments)
        self.rank, self.world_size = self.dist.get_rank(), self.dist.get_world_size()
        self.backend = self.dist.get_backend()
        self.maximum = self.torch.maximum
        self.join = self.torch.cat
        self.raw = common.raw

    def index(self, count: int):
        return self.torch.arange(count, dtype=self.torch.int64, device=self.device)

    def cast(self, tensor, kind: str):
        return tensor.to(getattr(self.torch, kind))

    def ones(self, count: int):
        return self.torch.ones(count, dtype=self.torch.float32, device=self.device)

    def kind(self, tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def first_difference(self, one, other) -> int | None:
        return None if self.torch.equal(one, other) else int((one != other).nonzero()[0])

    def all_reduce(self, tensor, **how):
        result = tensor.clone()
        self.dist.all_reduce(result, **how)
        return self.done(result)

    def all_reduce_max(self, tensor):
        return self.all_reduce(tensor, op=self.dist.ReduceOp.MAX)

    def broadcast(self, tensor, root: int):
        result = tensor.clone()
        self.dist.broadcast(result, src=root)
        return self.done(result)

    def all_gather(self, tensor):
        parts = [self.torch.zeros_like(tensor) for _ in range(self.world_size)]
        self.dist.all_gather(parts, tensor)
        return self.done(parts)

    def reduce_scatter(self, tensor):
        result = self.torch.zeros_like(tensor[: len(tensor) // self.world_size])
        self.dist.reduce_scatter_tensor(result, tensor)
        return self.done(result)

    def all_to_all(self, tensor):
        result = self.torch.zeros_like(tensor)
        self.dist.all_to_all_single(result, tensor)
        return self.done(result)

    def lacks(self, error: Exception) -> bool:
        return isinstance(error, RuntimeError) and "does not support" in str(error)

    def time_allreduce(self, tensor) -> float:
        # Else the values would grow with every allreduce.
        self.done(tensor.fill_(1.0))
        started = time.perf_counter()
        self.dist.all_reduce(tensor)
        self.done(tensor)
        return time.perf_counter() - started

    def barrier(self) -> None:
        self.dist.barrier()
        self.done(None)

    def end(self) -> None:
        common.end(self.dist)

    def done(self, result):
        """Wait for the result: NCCL's collectives only start, and the GPU does the work later."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        return result


trial.main(TorchOps)
