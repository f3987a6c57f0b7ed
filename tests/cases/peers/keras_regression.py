"""Fit a line with Keras's `fit` on all workers of TF_CONFIG. It needs tf-keras, and TF_USE_LEGACY_KERAS=1."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

BATCH = 64  # of all workers together

options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
x = np.random.default_rng(0).uniform(-1, 1, (2048, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, 3 * x - 2)).repeat().batch(BATCH)
sharding = tf.data.Options()
sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.2), loss="mse")
history = model.fit(data.with_options(sharding), epochs=3, steps_per_epoch=40, verbose=0).history["loss"]
slope, offset = (float(weight.ravel()[0]) for weight in model.get_weights())
worker = f"worker {strategy.cluster_resolver.task_id} of {strategy.num_replicas_in_sync}"
print(f"{worker} | y = {slope:.3f} x + {offset:.3f} | loss {history[-1]:.1e}", flush=True)
