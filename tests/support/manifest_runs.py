"""Write a job with `launch`, and run its pods as containers until one of them says the end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from imagebuilder.core import process
from tests.support.manifests import pods_of
from tests.support.pods import docker, pods

_PROGRAM = Path(sys.executable).parent / "imagebuilder"
_SECONDS = 180


def ran(image: str, target: str, work: Path, end: str, *command: str) -> str:
    """Return all that the pods of a job on two nodes print, once one prints `end`.

    Args:
        image: in the engine.
        target: of `launch`.
        work: an empty folder.
        end: the last words of the program.
        command: what every rank runs.

    """
    job = work / "job"
    options = ("--nodes", "2", "--gpus", "0", "--env", "OMP_NUM_THREADS=1", "--name", "fit")
    process.run(
        (_PROGRAM, "launch", image, "--target", target, *options, "--output", job, "--", *command), timeout=60
    )
    return played(image, job, work, end)


def played(image: str, job: Path, work: Path, end: str) -> str:
    """Run the pods of a job that is written already; returns what they print, once one prints `end`."""
    with pods(image) as lent:
        names = [
            lent.start(pod.host, "--shm-size", "1g", *pod.options, command=pod.command)
            for pod in pods_of(job, work)
        ]
        deadline = time.monotonic() + _SECONDS
        while True:
            results = [docker("logs", name) for name in names]
            log = "".join(result.stdout + result.stderr for result in results)
            if end in log or time.monotonic() > deadline:
                return log
            time.sleep(0.5)
