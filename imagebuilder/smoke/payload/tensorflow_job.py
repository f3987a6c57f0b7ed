"""Join a job of TensorFlow: MultiWorkerMirroredStrategy, told by TF_CONFIG who its workers are."""

from __future__ import annotations

import json
import os
import time

import common
from numpy_ops import leave

_LINGER = 3  # seconds


def join(arguments):
    """Write TF_CONFIG from all ranks' addresses, and meet them; returns the module and the strategy."""
    workers = os.environ["IMAGEBUILDER_RANKS"].split(",")
    common.require_reached(arguments.nonce, "a worker of TF_CONFIG", workers)
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": int(os.environ["RANK"])},
        }
    )
    # Errors alone: warnings of a host without a GPU fill pages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if arguments.device == "cuda":
        tf.config.set_visible_devices(gpus[common.own_gpu(len(gpus))], "GPU")
    else:
        tf.config.set_visible_devices([], "GPU")
    tf.config.experimental.enable_op_determinism()
    implementation = "NCCL" if arguments.device == "cuda" else "RING"
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=getattr(tf.distribute.experimental.CommunicationImplementation, implementation),
        timeout_seconds=common.TIMEOUT,
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    try:
        meet(tf, strategy)
    except tf.errors.OpError as error:
        lines = [line.strip() for line in str(error).splitlines() if "connect" in line]
        common.fail(
            arguments.nonce,
            f"the workers of TF_CONFIG ({', '.join(workers)}) do not meet: {[*lines, str(error)][0][:300]}",
            common.UNREACHED,
        )
    return tf, strategy


def end(tf, strategy) -> None:
    """Leave the job together.

    Ranks pull what the others computed: one may be done with the last sum before another has its part.
    """
    meet(tf, strategy)
    time.sleep(_LINGER)
    leave()


def meet(tf, strategy) -> None:
    """Wait for all ranks, in a sum of ones."""

    @tf.function
    def total():
        context = tf.distribute.get_replica_context
        return strategy.run(lambda: context().all_reduce("SUM", tf.constant(1.0)))

    total()
