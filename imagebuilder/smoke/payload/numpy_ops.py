"""What frameworks share whose tensors become numpy's: JAX, TensorFlow, MXNet."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys

import common
import numpy as np
from rows import HELD_OUT, MEAN, SEED, SIDE, batches, read

GLOBAL_BATCH = 64  # of all ranks together
EPOCHS = 8
CONTROL_EPOCHS = 1  # enough for the ranks to drift apart
RATE = 0.2
HIDDEN = 64
DIGITS = 10
LOGGED = 5  # steps


class NumpyOps:
    """Arrays of the trial, in numpy. A framework adds its collectives."""

    rank: int
    world_size: int
    backend: str
    maximum = staticmethod(np.maximum)
    join = staticmethod(np.concatenate)

    def index(self, count: int):
        return np.arange(count, dtype=np.int64)

    def cast(self, array, kind: str):
        if kind == "bfloat16":
            # JAX and TensorFlow bring it; numpy has no such type.
            import ml_dtypes

            return array.astype(ml_dtypes.bfloat16)
        return array.astype(kind)

    def ones(self, count: int):
        return np.ones(count, np.float32)

    def kind(self, array) -> str:
        return str(array.dtype)

    def first_difference(self, one, other) -> int | None:
        different = np.flatnonzero(one != other)
        return int(different[0]) if different.size else None

    def raw(self, array) -> bytes:
        return array.tobytes()

    def end(self) -> None:
        self.barrier()
        leave()

    def barrier(self) -> None:
        raise NotImplementedError


def leave() -> None:
    """End with 0, past Python's own end: threads of the framework may go on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def digits(path: str):
    """Return images as rows of double precision and their digits, to train on, and the same held out."""
    pixels, labels = read(path)
    images = np.frombuffer(pixels, np.uint8).reshape(-1, SIDE * SIDE).astype(np.float64) / 255 - MEAN
    numbers = np.frombuffer(labels, np.uint8).astype(np.int64)
    return images[HELD_OUT:], numbers[HELD_OUT:], images[:HELD_OUT], numbers[:HELD_OUT]


def weights(seed: int) -> list[np.ndarray]:
    """Return the first weights of a network with one hidden layer."""
    draw = np.random.default_rng(seed)
    sizes = (SIDE * SIDE, HIDDEN, DIGITS)
    made = []
    for inputs, outputs in itertools.pairwise(sizes):
        made += [draw.normal(0, inputs**-0.5, (inputs, outputs)), np.zeros(outputs)]
    return made


def fingerprint(arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def train(model) -> None:
    """Train as one rank of a job, and answer as train.py does.

    `model` gets the arguments and has: `rank`, `world_size`; `begin(weights)`, which gives all ranks those of
    the first one; `step(images, digits)`, which trains on this rank's part of a batch and returns its loss;
    `step_alone`, the same without the other ranks; `weights()`, `set(weights)`, `classify(images)`, `end()`.
    """
    parser = common.parser()
    parser.add_argument("--role", choices=("ddp", "control"), required=True)
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    job = model(arguments)
    images, labels, held_images, held_labels = digits(arguments.data)
    together = arguments.role == "ddp"
    # Each rank begins with other weights, so that the framework itself must make them equal.
    own = weights(SEED + (job.rank if together else 0))
    job.begin(own) if together else job.set(own)
    start = fingerprint(job.weights())
    size = max(GLOBAL_BATCH // job.world_size, 1)
    mine = slice(size * job.rank, size * (job.rank + 1))
    whole, epochs = size * job.world_size, EPOCHS if together else CONTROL_EPOCHS
    step = job.step if together else job.step_alone
    losses = [
        float(step(images[batch[mine]], labels[batch[mine]])) for batch in batches(len(images), whole, epochs)
    ]
    end = job.weights()
    accuracy = float((job.classify(held_images) == held_labels).mean())
    distance = None
    if together and job.rank == 0:
        job.set(weights(SEED))
        for batch in batches(len(images), whole, epochs):
            job.step_alone(images[batch], labels[batch])
        distance = max(
            float(np.abs(one - other).max() / np.abs(other).max())
            for one, other in zip(end, job.weights(), strict=True)
        )
    common.say(
        arguments.nonce,
        rank=job.rank,
        world_size=job.world_size,
        own=fingerprint(own),
        start=start,
        end=fingerprint(end),
        first_loss=mean(losses[:10]),
        last_loss=mean(losses[-10:]),
        losses=[round(mean(losses[at : at + LOGGED]), 5) for at in range(0, len(losses), LOGGED)],
        steps=len(losses),
        accuracy=accuracy,
        distance=distance,
    )
    job.end()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
