"""JAX and TensorFlow in one image, proven one after the other; Keras; torch with MPI; ranks apart."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imagebuilder.core import process
from imagebuilder.smoke.engine import Engine
from imagebuilder.smoke.nodes.cluster import PAYLOAD
from imagebuilder.smoke.session import MARKER
from imagebuilder.store import Store
from tests.integration.conftest import Built
from tests.integration.test_peers import require_ended
from tests.support import broken
from tests.support.pods import SCRIPTS, docker, pods

# Both ranks in one container: rank 1 looks for rank 0 at a port where nobody listens.
APART = """
cd /payload
for rank in 0 1; do
    port=$((7100 + 100 * rank))
    export RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=$port
    export IMAGEBUILDER_RANKS=localhost:$((7001 + 49 * rank)),localhost:7002
    timeout -k 5 150 python SCRIPT --nonce n --peer localhost --role ddp --data /payload/none &
done
wait
"""
# The test's own words, or TensorFlow's, whichever come first: both wait for 60 s.
NO_WORKER = (
    "a worker of TF_CONFIG at localhost:7050 was not reached for 60 s: "
    r"|the workers of TF_CONFIG \(localhost:7050, localhost:7002\) do not meet: "
)


def test_jax_and_tensorflow_are_proven_one_after_the_other(
    built: Built, connected: Engine, store: Store
) -> None:
    report = broken.run(None, built(broken.recipe("frameworks")), connected, store)
    results = {check.name: check for check in report.checks}
    for name in ("collectives", "training", "control"):
        assert results[name].status == "passed"
        assert set(results[name].evidence) == {"jax", "tensorflow"}
        assert results[name].summary.startswith("jax: ")
        assert "; tensorflow: " in results[name].summary
    assert results["rendezvous"].reason == "no torch in this image"
    assert report.passed


def test_ranks_meet_by_the_mpi_backend_of_debian_s_torch(built: Built) -> None:
    """Its torchrun needs `--rdzv-conf use_libuv=0`, so the whole check `rendezvous` fails with it."""
    mpirun = ("mpirun", "-n", "2", "--oversubscribe", "python", "/payload/hello.py", "--nonce", "n", "--mpi")
    mount = ("-e", "IMAGEBUILDER_SSHD=off", "-v", f"{PAYLOAD}:/payload:ro")
    words = ("docker", "run", "--rm", *mount, built(broken.recipe("debian-torch")), *mpirun)
    result = process.run(words, timeout=120, env=os.environ)
    answers = [json.loads(line.partition(MARKER)[2]) for line in result.stdout.splitlines() if MARKER in line]
    ranks = sorted((answer["rank"], answer["world_size"], answer["backend"]) for answer in answers)
    assert ranks == [(0, 2, "mpi"), (1, 2, "mpi")]


@pytest.mark.parametrize(
    ("base", "script", "message"),
    [
        (
            "frameworks",
            "jax_train.py",
            "JAX's coordinator, rank 0, at localhost:7200 was not reached for 60 s: ",
        ),
        (
            "frameworks",
            "tensorflow_train.py",
            NO_WORKER,
        ),
        (
            "mxnet",
            "mxnet_train.py",
            "the KVStore's scheduler, at rank 0, at 127.0.0.1:7200 was not reached for 60 s: ",
        ),
    ],
)
def test_ranks_that_cannot_meet_say_where(built: Built, base: str, script: str, message: str) -> None:
    run_both = ("bash", "-c", APART.replace("SCRIPT", script))
    words = ("docker", "run", "--rm", "-v", f"{PAYLOAD}:/payload:ro", built(broken.recipe(base)), *run_both)
    result = process.run(words, timeout=400, check=False, env=os.environ)
    answers = [line for line in result.stdout.splitlines() if line.startswith(MARKER)]
    assert any(re.search(f'"error": "({message})', line) for line in answers), (
        result.stdout + result.stderr[-3000:]
    )


@contextmanager
def keras_job(image: str, *hosts: str, legacy: int) -> Iterator[list[str]]:
    """Start Keras's `fit` on two nodes, `first` and `second`, whose TF_CONFIG lists these hosts."""
    with pods(image) as job:
        names = []
        for index, host in enumerate(("first", "second")):
            workers = {"worker": [f"{name}:2222" for name in hosts]}
            config = json.dumps({"cluster": workers, "task": {"type": "worker", "index": index}})
            variables = ("-e", f"TF_CONFIG={config}", "-e", f"TF_USE_LEGACY_KERAS={legacy}")
            command = ["timeout", "-k", "5", "120", "python", f"{SCRIPTS}/keras_regression.py"]
            names.append(job.start(host, *variables, command=command))
        yield names


def test_keras_fits_on_both_workers_of_tf_config(built: Built) -> None:
    with keras_job(built(broken.recipe("keras")), "first", "second", legacy=1) as names:
        require_ended(names)
        said = [docker("logs", name).stdout.partition(" | loss")[0] for name in names]
    assert said == [f"worker {rank} of 2 | y = 3.000 x + -2.000" for rank in range(2)]


@pytest.mark.parametrize(
    ("hosts", "legacy", "cause"),
    [
        (("first", "third"), 1, "Address lookup failed for third:2222"),
        # Keras 3 takes the strategy's parts of a batch for one tensor.
        (
            ("first", "second"),
            0,
            "values.PerReplica'>) to a Tensor",
        ),
    ],
)
def test_keras_with_a_wrong_peer_or_of_version_3_ends_and_names_the_cause(
    built: Built, hosts: tuple[str, str], legacy: int, cause: str
) -> None:
    with keras_job(built(broken.recipe("keras")), *hosts, legacy=legacy) as names:
        # 124 and 137 would be the time limit's.
        assert {docker("wait", name).stdout.strip() for name in names} == {"1"}
        assert cause in docker("logs", names[0]).stderr
