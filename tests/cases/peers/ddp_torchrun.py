"""Train a classifier with DistributedDataParallel, one process for each GPU or core. In the way of torch's own
example for `torchrun`, which tells every process who it is through variables:

    torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 ddp_torchrun.py
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def points(count=2048):
    """Points in a square, labelled by the quarter that they lie in."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 2, generator=generator) * 2 - 1
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.rank = int(os.environ["RANK"])
        cuda = torch.cuda.is_available()
        self.device = torch.device(f"cuda:{self.local_rank}" if cuda else "cpu")
        model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        self.model = DDP(model.to(self.device), device_ids=[self.local_rank] if cuda else None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        data = points()
        self.loader = DataLoader(data, batch_size=64, shuffle=False, sampler=DistributedSampler(data))
        self.snapshot_path = snapshot_path

    def epoch(self, number):
        self.loader.sampler.set_epoch(number)
        right = seen = 0
        for x, y in self.loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            out = self.model(x)
            F.cross_entropy(out, y).backward()
            self.optimizer.step()
            right += int((out.argmax(1) == y).sum())
            seen += len(y)
        total = torch.tensor([right, seen], device=self.device)
        dist.all_reduce(total)
        return float(total[0] / total[1])

    def train(self, epochs):
        for number in range(epochs):
            accuracy = self.epoch(number)
            if self.rank == 0:
                print(f"epoch {number} | world {dist.get_world_size()} | accuracy {accuracy:.3f}", flush=True)
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), self.snapshot_path)
            print(f"saved {self.snapshot_path}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--snapshot", default="snapshot.pt")
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        Trainer(arguments.snapshot).train(arguments.epochs)
        # No rank ends while another still works.
        dist.barrier()
    finally:
        dist.destroy_process_group()
    # Threads of gloo go on after DistributedDataParallel, and may abort the process while Python ends.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
