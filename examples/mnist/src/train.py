"""Train a classifier of handwritten digits on all ranks of a job.

The learning rate grows with the number of ranks, after a warm-up (Goyal et al., "Accurate, Large Minibatch
SGD", arXiv:1706.02677). Rank 0 writes a checkpoint after each epoch, and a file of events for TensorBoard. A
job that finds a checkpoint goes on from there.
"""

import argparse
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

BATCH = 64
RATE = 0.05
WARM_UP = 50  # steps


def mnist(archive: str, kind: str) -> TensorDataset:
    """Read MNIST's own format, IDX, from a tar archive; `kind` is `train` or `t10k`."""

    def values(file: str) -> torch.Tensor:
        with tarfile.open(archive) as tar:
            member = next(member for member in tar if member.name.endswith(file))
            data = tar.extractfile(member).read()
        shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, 4 + 4 * data[3], 4)]
        return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).reshape(shape)

    images = values(f"{kind}-images-idx3-ubyte")[:, None] / 255 - 0.13
    return TensorDataset(images, values(f"{kind}-labels-idx1-ubyte").long())


def drawn(count: int, seed: int) -> TensorDataset:
    """Make images without a download: ten patterns, each with noise."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 1, 28, 28, generator=generator)
    return TensorDataset(patterns[labels] - 0.5 + 0.3 * noise, labels)


def rate(step: int, ranks: int) -> float:
    """Return the learning rate: from one rank's to `ranks` times that, during the warm-up."""
    return RATE * (1 + (ranks - 1) * min(1.0, step / WARM_UP))


def save(state: dict, path: Path) -> None:
    """Replace the checkpoint in one step, so that a job that is killed leaves the older one whole."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def saved(path: Path) -> dict | None:
    """Return rank 0's checkpoint on every rank; None if there is none. The others need not see its disk."""
    found = (
        [torch.load(path, map_location="cpu", weights_only=True)] if is_first() and path.exists() else [None]
    )
    dist.broadcast_object_list(found, 0)
    return found[0]


def is_first() -> bool:
    return dist.get_rank() == 0


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x.to(device)).argmax(1) == y.to(device)).sum())
            for x, y in zip(images.split(1000), labels.split(1000), strict=True)
        )
    model.train()
    return right / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="an archive with MNIST in IDX files; without it, images are drawn")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir(), "mnist"))
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    train(arguments, device)
    dist.barrier()
    dist.destroy_process_group()
    # Threads of gloo go on after DistributedDataParallel, and may abort the process while Python ends.
    sys.stdout.flush()
    os._exit(0)


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    ranks = dist.get_world_size()
    training = mnist(arguments.data, "train") if arguments.data else drawn(8192, 1)
    test = mnist(arguments.data, "t10k") if arguments.data else drawn(2000, 2)
    sampler = DistributedSampler(training, seed=1)
    loader = DataLoader(training, batch_size=BATCH, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    begun = 0
    checkpoint = arguments.output / "checkpoint.pt"
    if state := saved(checkpoint):
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"] + 1
    events = SummaryWriter(str(arguments.output / "events")) if is_first() else None
    step = begun * len(loader)
    for epoch in range(begun, arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, ranks)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if events and step % 10 == 0:
                events.add_scalar("loss", loss.item(), step)
                events.add_scalar("learning rate", rate(step, ranks), step)
            step += 1
        if events:
            reached = accuracy(model.module, test, device)
            events.add_scalar("accuracy", reached, step)
            events.flush()
            parts = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            save(parts, checkpoint)
            print(f"epoch {epoch}: {ranks} ranks, learning rate {rate(step, ranks):.2f}")
            print(f"imagebuilder-metric: accuracy={reached:.4f}")
    if events:
        events.close()


if __name__ == "__main__":
    main()
