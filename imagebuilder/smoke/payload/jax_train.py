"""Train a small network on handwritten digits with JAX: gradients are averaged by `pmean` over all ranks."""

from __future__ import annotations

import jax_job
import numpy as np
from numpy_ops import RATE, leave, train


class JaxModel:
    """A network with one hidden layer, and this rank's copy of its weights."""

    def __init__(self, arguments) -> None:
        self.jax, mesh = jax_job.join(arguments)
        self.rank, self.world_size = self.jax.process_index(), self.jax.process_count()
        self.ranks = jax_job.Ranks(self.jax, mesh)
        self.alone = self.jax.jit(self.stepped)
        self.current: list[np.ndarray] = []

    def outputs(self, weights, images):
        first, first_bias, second, second_bias = weights
        return self.jax.nn.relu(images @ first + first_bias) @ second + second_bias

    def loss(self, weights, images, labels):
        likely = self.jax.nn.log_softmax(self.outputs(weights, images))
        return -self.jax.numpy.take_along_axis(likely, labels[:, None], axis=1).mean()

    def stepped(self, weights, images, labels, shared=lambda gradients: gradients):
        loss, gradients = self.jax.value_and_grad(self.loss)(weights, images, labels)
        moved = [w - RATE * g for w, g in zip(weights, shared(gradients), strict=True)]
        return moved, loss

    def together(self, images, labels, *weights):
        return self.stepped(
            list(weights), images, labels, lambda gradients: self.jax.lax.pmean(gradients, "ranks")
        )

    def begin(self, weights) -> None:
        from jax.experimental import multihost_utils

        self.set([np.asarray(array) for array in multihost_utils.broadcast_one_to_all(weights)])

    def set(self, weights) -> None:
        self.current = list(weights)

    def weights(self) -> list[np.ndarray]:
        return [np.asarray(array) for array in self.current]

    def step(self, images, labels) -> float:
        arrays = [self.ranks.spread(np.asarray(array)) for array in (images, labels, *self.current)]
        moved, loss = self.ranks.each(self.together)(*arrays)
        self.current = [self.ranks.own(array) for array in moved]
        return self.ranks.own(loss)

    def step_alone(self, images, labels) -> float:
        self.current, loss = self.alone(self.current, images, labels)
        return loss

    def classify(self, images) -> np.ndarray:
        return np.asarray(self.outputs(self.current, images)).argmax(1)

    def end(self) -> None:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("end")
        leave()


train(JaxModel)
