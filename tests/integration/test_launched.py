"""Jobs as `launch` writes them, run to their end: on two hosts with Docker, by Compose, and by Slurm."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.plan.sshkeys import make_keys
from imagebuilder.smoke.report import read
from tests.integration.conftest import ROOT, Built, remove_images
from tests.support.clusters import Hosts, Slurm, slurm
from tests.support.pods import PEERS, SCRIPTS, docker, pods

PROGRAM = Path(sys.executable).parent / "imagebuilder"
# No GPU is here, and four threads on two cores would wait for each other more than compute.
SMALL = ("--nodes", "2", "--gpus", "0", "--shm", "1Gi", "--env", "OMP_NUM_THREADS=1")
MOUNTED = ("--volume", f"host:{PEERS}:{SCRIPTS}")
DDP = ("python", f"{SCRIPTS}/ddp_torchrun.py", "--snapshot", "/tmp/snapshot.pt")
MPI = ("python", f"{SCRIPTS}/mpi_regression.py")
RATE = ("--launcher", "mpirun", "--env", "LEARNING_RATE=0.25")
BARE = ("--variant", "bare", *SMALL)
NODE = """
name: slurm-node
base: debian:trixie
python: "3.13"
pins: {cuda: "12.8", cudnn: "9.10", nccl: "2.27.5", torch: "2.10.0", gcc: "14", openmpi: "5.0.7"}
ssh: {port: 22, user: root}
apt: [rdma-core, ibverbs-utils, munge, slurm-client, slurmctld, slurmd]
pip: ["mpi4py==4.1.1", "tensorboard"]
"""


def launch(image: str, target: str, output: Path, *words: str) -> str:
    """Write a job, and return its name."""
    name = f"job-{uuid.uuid4().hex[:8]}"
    command = (PROGRAM, "launch", image, "--target", target, "--name", name, "--output", output)
    process.run((*command, *words), timeout=60)
    return name


def require_learnt(log: str) -> None:
    """Make sure of the script's own words: two ranks, and most points in the right quarter at the end."""
    accuracies = re.findall(r"epoch \d \| world 2 \| accuracy ([0-9.]+)$", log, re.MULTILINE)
    assert len(accuracies) == 5, log
    assert float(accuracies[-1]) > 0.9
    assert "saved /tmp/snapshot.pt" in log


def fitted(*hosts: str) -> str:
    return f"ranks 2 on {' '.join(hosts)} | rate 0.25 | y = 3.000 x + -2.000 | same True"


@pytest.fixture(scope="module")
def image(built: Built) -> str:
    return built(ROOT / "recipes" / "cuda12-torch.yaml")


@pytest.fixture(scope="module")
def hosts(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    make_keys(folder / "keys", name="hosts")
    with pods(image) as lent:
        yield Hosts(lent, folder, folder / "keys", ["login", "host0", "host1"])


ON_HOSTS = (*SMALL, *MOUNTED, "--host", "host0", "--host", "host1")


def test_two_hosts_train_together(hosts: Hosts, image: str) -> None:
    name = launch(image, "docker", hosts.homes["login"] / "ddp", *ON_HOSTS, "--", *DDP)
    require_learnt(hosts.run("login", "ddp", "sh", "start.sh").stdout)
    assert left_of(name) == []


def test_two_hosts_run_mpi_beside_their_own_sshd(hosts: Hosts, image: str) -> None:
    name = launch(image, "docker", hosts.homes["login"] / "mpi", *ON_HOSTS, *RATE, "--", *MPI)
    assert fitted("host0", "host1") in hosts.run("login", "mpi", "sh", "start.sh").stdout
    assert left_of(name) == []


def test_a_rank_s_code_comes_back_from_two_hosts(hosts: Hosts, image: str) -> None:
    script = ("sh", "-c", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exit 3')
    name = launch(image, "docker", hosts.homes["login"] / "code", *ON_HOSTS, *RATE, "--", *script)
    result = hosts.run("login", "code", "sh", "start.sh", check=False)
    assert result.code == 3, result.stderr
    assert "start.sh: node 0 on host0 ended with 3\n" in result.stderr
    assert left_of(name) == []


def left_of(name: str) -> list[str]:
    """The containers of a job that are still there."""
    return docker("ps", "-aq", "--filter", f"name={name}").stdout.split()


@pytest.mark.parametrize("kind", ["ddp", "mpi"])
def test_compose_runs_two_nodes(kind: str, image: str, tmp_path: Path) -> None:
    words = (*RATE, "--", *MPI) if kind == "mpi" else ("--", *DDP)
    launch(image, "compose", tmp_path / "job", *SMALL, *MOUNTED, *words)
    compose = ("docker", "compose", "--ansi", "never", "--project-directory", tmp_path / "job")
    try:
        # Without the option that `launch` names: Compose has it from 2.28 on.
        log = process.run((*compose, "up"), timeout=300).stdout
        codes = process.run((*compose, "ps", "-a", "--format", "{{.ExitCode}}"), timeout=60).stdout.split()
    finally:
        process.run((*compose, "down", "--volumes"), timeout=120)
    assert codes == ["0", "0"], log
    if kind == "mpi":
        assert fitted("node0", "node1") in log
    else:
        require_learnt(log)


@pytest.fixture(scope="module")
def cluster(built: Built, engine: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes that run an image of ours with Slurm in it."""
    shared = tmp_path_factory.mktemp("slurm")
    with slurm(built(NODE), shared) as lent:
        yield lent
    remove_images(engine, "slurm-node")


def test_slurm_starts_the_ranks_of_mpi_itself(cluster: Slurm) -> None:
    command = ("env", "LEARNING_RATE=0.25", "srun", "--mpi=pmix", "-N2", "-n2", *MPI)
    assert cluster.run(*command).stdout == fitted("node0", "node1") + "\n"


def test_slurm_runs_torchrun_on_every_node(cluster: Slurm) -> None:
    launch(cluster.image, "slurm", cluster.shared / "ddp", *BARE, "--", *DDP)
    state, log = cluster.submit("/shared/ddp")
    assert state == "COMPLETED", log
    require_learnt(log)


def test_slurm_runs_mpi_from_a_job_file(cluster: Slurm) -> None:
    launch(cluster.image, "slurm", cluster.shared / "mpi", *BARE, *RATE, "--", *MPI)
    assert "to start at" in cluster.run("sbatch", "--test-only", "job.sh", folder="/shared/mpi").stderr
    assert cluster.submit("/shared/mpi") == ("COMPLETED", fitted("node0", "node1") + "\n")


def test_the_smoke_test_runs_in_an_allocation_and_leaves_nothing(cluster: Slurm, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    checks = [f"--check={name}" for name in ("pins", "names", "mpirun", "rendezvous", "collectives")]
    command = (PROGRAM, "smoke-test", "--runtime", "slurm", "--report", report, "--store", tmp_path / "store")
    with cluster.allocated(tmp_path) as given:
        process.run((*command, *checks), env=given, timeout=200, check=False)
    found = read(report)
    results = {check.name: check.summary for check in found.checks if check.status == "passed"}
    assert {check.name: check.findings for check in found.checks if check.status == "failed"} == {}
    assert (found.runtime, found.nodes, found.digest) == ("slurm", 2, "")
    assert results["mpirun"] == "2 ranks on 2 hosts, exact sum through mpi4py, started by srun"
    assert results["rendezvous"].startswith("2 agents met by host name and by IP address, 2 ranks joined")
    assert results["collectives"].startswith("allreduce, broadcast, allgather, reduce_scatter and all_to_all")
    assert [note.partition(",")[0] for note in found.caveats if note.startswith("node")] == [
        *("node0 is node0", "node1 is node1"),
    ]
    assert cluster.left() == []


def test_slurm_is_told_of_a_rank_that_fails(cluster: Slurm) -> None:
    launch(cluster.image, "slurm", cluster.shared / "bad", *BARE, *RATE, "--", "sh", "-c", "exit 3")
    state, _ = cluster.submit("/shared/bad")
    assert state == "FAILED"
