"""The command of `launch --smoke` and `smoke-test --as-job`: the whole smoke test, as one word of Python."""

from __future__ import annotations

import dataclasses

from imagebuilder.launch.image import LaunchImage
from imagebuilder.smoke import job


def command(
    image: LaunchImage, target: str, launcher: str, layout: tuple[int, int], *, port: int, on_gpus: bool
) -> tuple[str, ...]:
    """Return what each node runs, once.

    Args:
        image: what the nodes run.
        target: what runs the job.
        launcher: what starts the command on the nodes.
        layout: the number of nodes, and of the test's ranks on each.
        port: where the launcher's own processes meet; the test's meet at the next one.
        on_gpus: whether the nodes have GPUs.

    """
    tested = dataclasses.replace(
        image.tested, reference=image.reference, digest=image.digest if image.pullable else ""
    )
    order = job.order(
        tested,
        dict(image.env),
        mode="multi-gpu" if on_gpus else "cpu",
        layout=layout,
        # srun starts ranks without keys, and torchrun runs on every node.
        logins=launcher == "mpirun" and target != "slurm",
    )
    return job.command(order, port + 1)
