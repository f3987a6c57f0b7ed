"""Train on handwritten digits with TensorFlow: a custom loop under MultiWorkerMirroredStrategy."""

from __future__ import annotations

import numpy as np
import tensorflow_job
from numpy_ops import RATE, train


class TensorflowModel:
    """A network with one hidden layer. Its variables are mirrored, or this rank's own."""

    def __init__(self, arguments) -> None:
        self.tf, self.strategy = tensorflow_job.join(arguments)
        self.rank = self.strategy.cluster_resolver.task_id
        self.world_size = self.strategy.num_replicas_in_sync
        self.variables: list = []

    def begin(self, weights) -> None:
        # A mirrored variable begins with the first rank's value.
        with self.strategy.scope():
            self.use([self.tf.Variable(array) for array in weights])

    def set(self, weights) -> None:
        self.use([self.tf.Variable(array) for array in weights])

    def use(self, variables) -> None:
        self.variables = variables
        self.compiled = self.tf.function(self.updated)
        self.compiled_alone = self.tf.function(self.updated_alone)

    def weights(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]

    def outputs(self, images):
        first, first_bias, second, second_bias = self.variables
        return self.tf.nn.relu(images @ first + first_bias) @ second + second_bias

    def gradients(self, images, labels):
        with self.tf.GradientTape() as tape:
            losses = self.tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.outputs(images))
            loss = self.tf.reduce_mean(losses)
        return loss, tape.gradient(loss, self.variables)

    def updated_alone(self, images, labels):
        loss, gradients = self.gradients(images, labels)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    def updated(self, images, labels):
        def replica(images, labels):
            loss, gradients = self.gradients(images, labels)
            context = self.tf.distribute.get_replica_context()
            mean = context.all_reduce("MEAN", gradients)
            for variable, gradient in zip(self.variables, mean, strict=True):
                variable.assign_sub(RATE * gradient)
            return loss

        return self.strategy.run(replica, args=(images, labels))

    def step(self, images, labels) -> float:
        return self.compiled(self.tf.constant(images), self.tf.constant(labels)).numpy()

    def step_alone(self, images, labels) -> float:
        return self.compiled_alone(self.tf.constant(images), self.tf.constant(labels)).numpy()

    def classify(self, images) -> np.ndarray:
        return self.outputs(self.tf.constant(images)).numpy().argmax(1)

    def end(self) -> None:
        tensorflow_job.end(self.tf, self.strategy)


train(TensorflowModel)
