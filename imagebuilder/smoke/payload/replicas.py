"""Train with batch normalisation, as one rank of a job; write a checkpoint; compare all of them on rank 0.

DDP keeps parameters alike. The running averages of batch normalisation are buffers: each rank has seen its
own part of each batch, so theirs differ, unless SyncBatchNorm takes the averages over all ranks.

Rank 0 also trains one step with DataParallel, which spreads a batch over all GPUs of one process.
"""

from __future__ import annotations

from pathlib import Path

import common
import compare
import torch
from torch import nn

STEPS = 6
BATCH = 8
SEED = 7


def main() -> None:
    parser = common.parser()
    parser.add_argument("--folder", required=True, help="one that all ranks see")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _, dist, device = common.join(arguments)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found = {"plain": trial(arguments, dist, device, "plain")}
    refused = ""
    try:
        found["sync"] = trial(arguments, dist, device, "sync")
    except ValueError as error:
        # torch refuses tensors on CPUs before it sends anything, and on every rank.
        if device.type == "cuda":
            raise
        refused = str(error)
    threaded = data_parallel(device) if rank == 0 else None
    dist.barrier()
    common.say(
        arguments.nonce, rank=rank, world_size=world_size, found=found, refused=refused, threaded=threaded
    )
    common.end(dist)


def data_parallel(device) -> dict[str, object]:
    """Compute the gradients of one batch with DataParallel, and without; returns how far they differ."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double().to(device)
    gpus = list(range(torch.cuda.device_count())) if device.type == "cuda" else []
    # The parameters have to be on the first of the GPUs.
    gpus.sort(key=lambda index: index != device.index)
    chance = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(8 * max(len(gpus), 1), 16, generator=chance, dtype=torch.float64).to(device)
    gradients = []
    for module in (model, nn.DataParallel(model, device_ids=gpus or None)):
        model.zero_grad()
        module(inputs).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    alone, spread = gradients
    return {"gpus": len(gpus), "distance": float((spread - alone).abs().max() / alone.abs().max())}


def trial(arguments, dist, device, norm: str) -> dict[str, object]:
    """Train, write, wait for all, and compare. Rank 0 returns the result for each other rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5)
    )
    if norm == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device)
    trained = nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.index is not None else None
    )
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    chance = torch.Generator().manual_seed(SEED + 1 + rank)
    for _ in range(STEPS):
        # Inputs with another mean on each rank, so that the running averages cannot be equal by chance.
        images = torch.randn(BATCH, 3, 8, 8, generator=chance) + rank
        labels = torch.randint(5, (BATCH,), generator=chance)
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    folder = Path(arguments.folder)
    paths = [folder / f"{arguments.nonce}-{norm}-{of}.pt" for of in range(world_size)]
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, paths[rank])
    dist.barrier()
    found = {}
    if rank == 0:
        own = compare.load(str(paths[0]))
        rules = compare.Rules()
        found = {
            str(of): compare.compare(own, compare.load(str(paths[of])), rules) for of in range(1, world_size)
        }
    dist.barrier()
    paths[rank].unlink()
    return found


main()
