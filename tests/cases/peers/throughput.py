"""Train the network of examples/mnist on images in memory, by torch's DistributedDataParallel or by Horovod, and say
how many images a second all ranks did.

torchrun ... throughput.py torch SECONDS        mpirun ... throughput.py horovod SECONDS
"""

import json
import os
import sys
import time

import torch
from torch import nn

BATCH = 64  # of each rank
WARM_UP = 50  # steps


def network():
    torch.manual_seed(0)
    convolution = (nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*convolution, nn.Linear(8 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def measure(model, optimizer, rank, ranks, first, seconds):
    """Train for about so many seconds; `first` gives all ranks the first one's tensor."""
    patterns = torch.rand(10, 1, 28, 28)
    generator = torch.Generator().manual_seed(1 + rank)
    labels = torch.randint(10, (32, BATCH), generator=generator)
    images = patterns[labels] - 0.5 + 0.3 * torch.randn(32, BATCH, 1, 28, 28, generator=generator)

    def train(count):
        for step in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[step % 32]), labels[step % 32]).backward()
            optimizer.step()

    train(WARM_UP)
    first(torch.ones(1))
    began = time.perf_counter()
    train(WARM_UP)
    needed = torch.tensor([time.perf_counter() - began])
    steps = max(WARM_UP, round(WARM_UP * seconds / first(needed).item()))
    began = time.perf_counter()
    train(steps)
    first(torch.ones(1))
    return ranks * BATCH * steps / (time.perf_counter() - began)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def say(rank, rate, everyone):
    if rank == 0:
        equal = all(torch.equal(everyone[0], other) for other in everyone)
        print("answer", json.dumps({"ranks": len(everyone), "rate": rate, "equal": equal}), flush=True)


def by_torch(seconds):
    import torch.distributed as dist

    def first(tensor):
        dist.broadcast(tensor, 0)
        dist.barrier()
        return tensor

    dist.init_process_group("gloo")
    try:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model = nn.parallel.DistributedDataParallel(network())
        rate = measure(model, sgd(model), rank, ranks, first, seconds)
        everyone = [torch.empty_like(flat(model)) for _ in range(ranks)]
        dist.all_gather(everyone, flat(model))
        say(rank, rate, everyone)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    # Threads of gloo go on after DistributedDataParallel, and may abort the process while Python ends.
    sys.stdout.flush()
    os._exit(0)


def by_horovod(seconds):
    import horovod.torch as hvd

    def first(tensor):
        hvd.barrier()
        return hvd.broadcast(tensor, 0, name="first")

    hvd.init()
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    rate = measure(model, optimizer, hvd.rank(), hvd.size(), first, seconds)
    say(hvd.rank(), rate, list(hvd.allgather(flat(model).unsqueeze(0))))


torch.set_num_threads(1)
{"torch": by_torch, "horovod": by_horovod}[sys.argv[1]](float(sys.argv[2]))
