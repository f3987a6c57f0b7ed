"""Train on handwritten digits with MXNet: the KVStore's server adds up gradients, and moves the weights."""

from __future__ import annotations

import mxnet_job
import numpy as np
from numpy_ops import RATE, train

# MXNet's operators take numbers in single precision.
_RATE = float(np.float32(RATE))


class MxnetModel:
    """A network with one hidden layer, and this rank's copy of its weights."""

    def __init__(self, arguments) -> None:
        self.job = mxnet_job.Job(arguments)
        self.mx = self.job.mx
        self.rank, self.world_size = self.job.rank, self.job.world_size
        self.current: list = []

    def begin(self, weights) -> None:
        self.set(weights)
        for key, weight in enumerate(self.current):
            # The store begins with the values of the worker that it takes for the first. They are replaced by
            # a sum, to which only this job's rank 0 adds anything.
            self.job.store.init(key, weight)
            self.job.store.push(key, weight if self.rank == 0 else self.mx.nd.zeros_like(weight))
        self.pull()
        self.job.barrier()
        # From now on the server moves the weights by what is pushed.
        self.job.store.set_optimizer(
            self.mx.optimizer.SGD(learning_rate=_RATE, rescale_grad=1 / self.world_size, wd=0)
        )

    def pull(self) -> None:
        for key, weight in enumerate(self.current):
            self.job.store.pull(key, out=weight)

    def set(self, weights) -> None:
        self.current = [self.mx.nd.array(array, dtype="float64") for array in weights]
        for weight in self.current:
            weight.attach_grad()

    def weights(self) -> list[np.ndarray]:
        return [weight.asnumpy() for weight in self.current]

    def outputs(self, images):
        first, first_bias, second, second_bias = self.current
        hidden = self.mx.nd.relu(self.mx.nd.dot(images, first) + first_bias)
        return self.mx.nd.dot(hidden, second) + second_bias

    def gradients(self, images, labels) -> float:
        images, labels = (self.mx.nd.array(part, dtype="float64") for part in (images, labels))
        with self.mx.autograd.record():
            loss = -self.mx.nd.pick(self.mx.nd.log_softmax(self.outputs(images)), labels).mean()
        loss.backward()
        return loss.asscalar()

    def step(self, images, labels) -> float:
        loss = self.gradients(images, labels)
        for key, weight in enumerate(self.current):
            self.job.store.push(key, weight.grad)
        self.pull()
        return loss

    def step_alone(self, images, labels) -> float:
        loss = self.gradients(images, labels)
        for weight in self.current:
            self.mx.nd.elemwise_sub(weight, _RATE * weight.grad, out=weight)
        return loss

    def classify(self, images) -> np.ndarray:
        return self.outputs(self.mx.nd.array(images, dtype="float64")).asnumpy().argmax(1)

    def end(self) -> None:
        self.job.end()


train(MxnetModel)
