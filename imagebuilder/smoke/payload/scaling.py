"""Train for some epochs on a fixed global batch, as one rank of a job, and time every batch.

    digits  a small convolutional network on handwritten digits
    resnet  a small residual network on random images of CIFAR's shape: work for a GPU, and nothing to learn

Each rank has its own processors and as many threads. Else a single rank would use those that two share later.
"""

from __future__ import annotations

import os
import random
import statistics
import time

import common
import torch
from digits import SEED, fingerprint, load, load_all
from torch import nn

GLOBAL_BATCH = 64
WARM_UP = 5  # batches that are not timed: kernels are chosen, connections made, pages touched
RANDOM_IMAGES = 2048


def main() -> None:
    parser = common.parser()
    parser.add_argument("--workload", choices=("digits", "resnet"), required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--full", action="store_true", help="--data has all of MNIST, in its own format")
    parser.add_argument("--cpus", default="", help="numbers of this job's processors, to be dealt out")
    arguments = parser.parse_args()
    pin(arguments.cpus)
    # The same convolution algorithms in every run, not those that a benchmark happened to find fastest.
    torch.backends.cudnn.benchmark = False
    _, dist, device = common.join(arguments)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels, held_images, held_labels = (part.to(device) for part in data(arguments))
    torch.manual_seed(SEED)
    model = (resnet() if arguments.workload == "resnet" else convolutional()).to(device)
    trained = nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None
    )
    run = Run(trained, images, labels, rank, world_size)
    run.epoch(0, batches=WARM_UP)
    dist.barrier()
    run.losses.clear()
    run.times.clear()
    began = time.perf_counter()
    for epoch in range(arguments.epochs):
        run.epoch(epoch)
    dist.barrier()
    seconds = time.perf_counter() - began
    last = torch.tensor([sum(run.losses[-10:]) / len(run.losses[-10:])], device=device)
    dist.all_reduce(last)
    common.say(
        arguments.nonce,
        rank=rank,
        world_size=world_size,
        backend=dist.get_backend(),
        batch_per_rank=GLOBAL_BATCH // world_size,
        batch_global=GLOBAL_BATCH,
        samples=len(run.times) * GLOBAL_BATCH,
        seconds=seconds,
        epoch_seconds=seconds / arguments.epochs,
        batch_median_ms=1000 * statistics.median(run.times),
        batch_p95_ms=1000 * statistics.quantiles(run.times, n=20)[-1],
        loss=float(last) / world_size,
        accuracy=accuracy(model, held_images, held_labels) if len(held_labels) else None,
        end=fingerprint(model),
        threads=torch.get_num_threads(),
    )
    common.end(dist)


class Run:
    """A model in training, the loss of each batch and the seconds that it took."""

    def __init__(self, model: nn.Module, images, labels, rank: int, world_size: int) -> None:
        self.model, self.images, self.labels = model, images, labels
        self.rank, self.mine = rank, GLOBAL_BATCH // world_size
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.losses: list[float] = []
        self.times: list[float] = []

    def epoch(self, number: int, batches: int = 0) -> None:
        """Go through the data in an order that all ranks know, each in its own part of every batch."""
        order = list(range(len(self.images)))
        random.Random(SEED + number).shuffle(order)
        starts = range(0, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH)
        for begin in starts[:batches] if batches else starts:
            started = time.perf_counter()
            first = begin + self.rank * self.mine
            mine = torch.tensor(order[first : first + self.mine], device=self.images.device)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.images[mine]), self.labels[mine])
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))  # waits for the GPU
            self.times.append(time.perf_counter() - started)


def pin(cpus: str) -> None:
    """Pin this process, and all threads that it will start, to processors of its own."""
    numbers = [int(number) for number in cpus.split(",") if number]
    each = len(numbers) // int(os.environ["WORLD_SIZE"])
    if each:
        rank = int(os.environ["RANK"])
        os.sched_setaffinity(0, numbers[rank * each : (rank + 1) * each])
    torch.set_num_threads(max(each, 1))


def data(arguments):
    if arguments.workload == "digits":
        return (load_all if arguments.full else load)(arguments.data)
    chance = torch.Generator().manual_seed(SEED)
    images = torch.randn(RANDOM_IMAGES, 3, 32, 32, generator=chance)
    labels = torch.randint(10, (RANDOM_IMAGES,), generator=chance)
    # Random data cannot be learnt, so no test data is held out.
    return images, labels, images[:0], labels[:0]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def resnet() -> nn.Module:
    """Three stages of one residual block, as in the ResNets for CIFAR, with norms that need no buffers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Block(nn.Module):
    """A residual block: two convolutions, and a connection past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1)
        self.first_norm = nn.GroupNorm(8, after)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.second_norm = nn.GroupNorm(8, after)
        self.past = nn.Conv2d(before, after, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, image):
        inner = nn.functional.relu(self.first_norm(self.first(image)))
        return nn.functional.relu(self.second_norm(self.second(inner)) + self.past(image))


def accuracy(model: nn.Module, images, labels) -> float:
    with torch.no_grad():
        right = sum(
            int((model(images[at : at + 500]).argmax(1) == labels[at : at + 500]).sum())
            for at in range(0, len(labels), 500)
        )
    return right / len(labels)


main()
