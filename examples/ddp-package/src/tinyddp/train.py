"""Train a small network on all ranks of a job that torchrun has started."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tinyddp.data import circle


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)).to(device)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    training = circle(2048, seed=1)
    sampler = DistributedSampler(training, seed=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for points, inside in DataLoader(training, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            loss = loss_of(model(points.to(device)), inside.to(device))
            loss.backward()
            optimizer.step()
    points, inside = (tensor.to(device) for tensor in circle(1024, seed=2).tensors)
    with torch.no_grad():
        accuracy = ((model.module(points) > 0) == (inside > 0)).float().mean().item()
    if rank == 0:
        print(f"{dist.get_world_size()} ranks, {epochs} epochs, loss {loss.item():.3f}")
        print(f"imagebuilder-metric: accuracy={accuracy:.3f}")
    dist.barrier()
    dist.destroy_process_group()
    # Threads of gloo go on after DistributedDataParallel, and may abort the process while Python ends.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
