"""Synthetic data: points in a plane, and whether they lie inside a circle."""

import torch
from torch.utils.data import TensorDataset


def circle(count: int, seed: int) -> TensorDataset:
    """Make points between -1 and 1, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 2, generator=generator) * 2 - 1
    inside = (points.square().sum(dim=1) < 0.5).float()
    return TensorDataset(points, inside)
