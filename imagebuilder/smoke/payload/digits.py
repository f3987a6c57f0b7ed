"""Handwritten digits as torch's tensors, and what the scripts that train on them share."""

from __future__ import annotations

import hashlib
import tarfile

import common
import torch
from rows import HELD_OUT, MEAN, SEED, SIDE, read
from torch import nn

__all__ = ["SEED", "fingerprint", "load", "load_all"]


def load(path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images and digits to train on, and those held out, which are the same for every rank."""
    pixels, numbers = read(path)
    images = _scaled(torch.frombuffer(bytearray(pixels), dtype=torch.uint8))
    labels = torch.frombuffer(bytearray(numbers), dtype=torch.uint8).long()
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
    return (grey.to(torch.get_default_dtype()) / 255 - MEAN).reshape(-1, 1, SIDE, SIDE)


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + common.raw(value))
    return digest.hexdigest()
