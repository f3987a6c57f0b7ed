"""Handwritten digits as bytes, for every framework: in the same order for every rank."""

from __future__ import annotations

import gzip
import random

SEED = 20
HELD_OUT = 500
SIDE = 28  # pixels
MEAN = 0.1307  # of all grey values of MNIST's training digits, as 0 to 1


def read(path: str) -> tuple[bytes, bytes]:
    """Read shuffled digits: 784 grey values of each, and its name. The first `HELD_OUT` are held out."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = [bytes(map(int, line.split(","))) for line in file]
    random.Random(SEED).shuffle(rows)
    return b"".join(row[: SIDE * SIDE] for row in rows), bytes(row[SIDE * SIDE] for row in rows)


def batches(count: int, whole: int, epochs: int):
    """Yield the numbers of the digits in each batch of all ranks together; each epoch has another order."""
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(SEED + epoch).shuffle(order)
        for begin in range(0, count - whole + 1, whole):
            yield order[begin : begin + whole]
