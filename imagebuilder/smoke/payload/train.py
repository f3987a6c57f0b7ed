"""Train a small network on handwritten digits, as one rank of a job.

    ddp      with DistributedDataParallel: each rank starts from its own weights and sees its own part of each
             batch; rank 0 then trains again alone, with whole batches, and compares
    control  from the same weights, but gradients are not synchronised

All runs have the same batches in the same order, so that one rank and many must end with the same weights.
"""

from __future__ import annotations

import time

import common
import torch
from digits import SEED, fingerprint, load
from rows import batches
from torch import nn

GLOBAL_BATCH = 64  # of all ranks together, so that more of them train no worse
EPOCHS = 4
CONTROL_EPOCHS = 1  # enough for the ranks to drift apart
RATE = 0.05
MOMENTUM = 0.9
LOGGED = 5  # steps


def main() -> None:
    parser = common.parser()
    parser.add_argument("--role", choices=("ddp", "control"), required=True)
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Not torch.use_deterministic_algorithms: it imports the compiler, which takes seconds.
    torch.backends.cudnn.deterministic = True
    # In double precision what one process and several compute differs by 1e-15; in single precision rounding
    # alone would let them drift apart by a tenth, and a wrong average might hide in that.
    torch.set_default_dtype(torch.float64)
    _, dist, device = common.join(arguments)
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels, held_images, held_labels = (part.to(device) for part in load(arguments.data))

    # Each rank starts from different weights, so that DDP itself must make them equal.
    model = network(SEED + (rank if arguments.role == "ddp" else 0)).to(device)
    own = fingerprint(model)
    trained: nn.Module = model
    if arguments.role == "ddp":
        trained = nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
    start = fingerprint(model)
    began = time.monotonic()
    epochs = EPOCHS if arguments.role == "ddp" else CONTROL_EPOCHS
    losses = train(trained, images, labels, part_of(rank, world), epochs)
    seconds = time.monotonic() - began
    with torch.no_grad():
        accuracy = float((model(held_images).argmax(1) == held_labels).double().mean())
    distance = None
    if arguments.role == "ddp" and rank == 0:
        alone = network(SEED).to(device)
        train(alone, images, labels, part_of(0, 1, batch=part_of(rank, world)[0]), epochs)
        distance = compare(model.state_dict(), alone.state_dict())
    common.say(
        arguments.nonce,
        rank=rank,
        world_size=world,
        own=own,
        start=start,
        end=fingerprint(model),
        first_loss=mean(losses[:10]),
        last_loss=mean(losses[-10:]),
        losses=[round(mean(losses[at : at + LOGGED]), 5) for at in range(0, len(losses), LOGGED)],
        steps=len(losses),
        accuracy=accuracy,
        distance=distance,
        seconds=seconds,
    )
    common.end(dist)


def network(seed: int) -> nn.Module:
    """No batch normalisation and no dropout: one process with whole batches must compute the same."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def part_of(rank: int, world: int, batch: int = 0) -> tuple[int, int, int]:
    """Return the size of the whole batch, and begin and end of this rank's part. The parts do not overlap."""
    mine = max((batch or GLOBAL_BATCH) // world, 1)
    return mine * world, mine * rank, mine * (rank + 1)


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, part: tuple[int, int, int], epochs: int
) -> list[float]:
    whole, first, last = part
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for batch in batches(len(images), whole, epochs):
        mine = torch.tensor(batch[first:last], device=images.device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compare(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of any weight, in units of the largest weight of its tensor."""
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in one)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


main()
