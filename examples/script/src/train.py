"""Fit a line on all ranks of a job that torchrun has started; each rank has its own part of the data."""

import os

import torch
import torch.distributed as dist

STEPS = 200


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    x = torch.rand(256, generator=generator).to(device)
    y = 3 * x + 1
    weights = torch.zeros(2, device=device, requires_grad=True)
    for _ in range(STEPS):
        loss = (weights[0] * x + weights[1] - y).square().mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        dist.all_reduce(gradient)
        with torch.no_grad():
            weights -= 0.5 * gradient / ranks
    if rank == 0:
        print(f"{ranks} ranks: y = {weights[0]:.2f} x + {weights[1]:.2f}")
        print(f"imagebuilder-metric: loss={loss.item():.2e}")
    dist.barrier()
    dist.destroy_process_group()


main()
