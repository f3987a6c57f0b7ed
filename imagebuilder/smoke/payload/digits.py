"""Handwritten digits as tensors, and what the scripts that train on them share."""

from __future__ import annotations

import array
import gzip
import hashlib
import random
import tarfile

import common
import torch
from torch import nn

SEED = 20
HELD_OUT = 500
_MEAN = 0.1307  # of all grey values of MNIST's training digits, as 0 to 1


def load(path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Read rows of 784 grey values and a digit; the held-out part is the same for every rank."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = [array.array("B", map(int, line.split(","))) for line in file]
    random.Random(SEED).shuffle(rows)
    flat = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).reshape(len(rows), 785)
    images, labels = _scaled(flat[:, :784]), flat[:, 784].long()
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def load_all(path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Read all 60,000 digits for training and 10,000 for testing, in MNIST's own format, from an archive."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name.endswith("-ubyte"):
                found[name] = _idx(archive.extractfile(member).read())
    return (
        _scaled(found["train-images-idx3-ubyte"]),
        found["train-labels-idx1-ubyte"].long(),
        _scaled(found["t10k-images-idx3-ubyte"]),
        found["t10k-labels-idx1-ubyte"].long(),
    )


def _idx(data: bytes) -> torch.Tensor:
    """Read IDX: two zero bytes, the type (8: bytes), how many dimensions, each as 32 bits, the values."""
    if data[:3] != b"\0\0\x08":
        raise ValueError("not IDX of bytes")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, 4 + 4 * data[3], 4)]
    return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).reshape(shape)


def _scaled(grey: torch.Tensor) -> torch.Tensor:
    return (grey.to(torch.get_default_dtype()) / 255 - _MEAN).reshape(-1, 1, 28, 28)


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + common.raw(value))
    return digest.hexdigest()
