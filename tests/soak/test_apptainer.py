"""Jobs in Slurm whose nodes run the image by Apptainer, as an unprivileged user, from squashfs and SIF."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.smoke.report import read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.integration.test_launched import MPI, RATE, fitted, launch, require_learnt
from tests.support.clusters import Slurm, slurm
from tests.support.pods import PEERS, docker

PROGRAM = Path(sys.executable).parent / "imagebuilder"
# Of Debian's suites only sid has Apptainer.
NODE = """
name: apptainer-node
base: debian:sid
python: "3.14"
ssh: {port: 22, user: root}
apt: [adduser, apptainer, fuse3, squashfs-tools]
"""
# sid's Slurm has no PMIx, so it is Debian 13's. A mirror that stands still has an old Release file.
_INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
sed s/sid/trixie/ /etc/apt/sources.list.d/*.sources >/etc/apt/sources.list.d/trixie.sources
apt-get -q -o Acquire::Check-Valid-Until=false update
apt-get -q install -y --no-install-recommends squashfuse
apt-get -q install -y --no-install-recommends -t trixie munge slurm-client slurmctld slurmd
useradd --create-home --uid 1000 person
"""
_USER = "person"
# Part of a script that plays srun: what is below the shared folder here is below /shared on the nodes.
_REPLACED = """for word; do
    shift
    case $word in "$HERE"/*) word=/shared/${word#"$HERE"/} ;; esac
    set -- "$@" "$word"
done
"""
# The scripts are on the shared folder: Apptainer mounts nothing of it by itself but the user's home.
SMALL = ("--variant", "apptainer", "--nodes", "2", "--gpus", "0", "--volume", "host:/shared:/shared")
DDP = ("python", "/shared/ddp_torchrun.py", "--snapshot", "/tmp/snapshot.pt")


@pytest.fixture(scope="module")
def node(built: Built) -> Iterator[str]:
    """An image with Slurm and Apptainer."""
    name = "imagebuilder-apptainer-slurm"
    docker("rm", "-f", name, check=False)
    docker("run", "--name", name, "--entrypoint", "bash", built(NODE), "-c", _INSTALL)
    docker("commit", name, name)
    docker("rm", name)
    yield name
    docker("image", "rm", name)


@pytest.fixture(scope="module")
def cluster(node: str, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    shared = tmp_path_factory.mktemp("slurm")
    for script in PEERS.glob("*.py"):
        shutil.copy(script, shared)
    for recipe, file in (
        ("cuda12-torch", "torch.sqsh"),
        ("cpu-mpi", "mpi.sqsh"),
        ("cpu-mpi", "mpi.tar"),
    ):
        command = (PROGRAM, "build", ROOT / "recipes" / f"{recipe}.yaml", "--output", shared / file)
        process.run((*command, "--store", store.root), timeout=1800)
    # Whatever the folders above it say, containers reach it by a mount. Slurm writes as the user.
    shared.chmod(0o777)
    with slurm(node, shared, "--privileged") as lent:
        yield lent
    shutil.rmtree(shared)


def submit(cluster: Slurm, image: str, file: str, name: str, *words: str) -> str:
    launch(image, "slurm", cluster.shared / name, *SMALL, "--image-file", f"/shared/{file}", *words)
    (cluster.shared / name).chmod(0o777)
    state, log = cluster.submit(f"/shared/{name}", user=_USER)
    assert state == "COMPLETED", log
    return log


def test_torchrun_in_squashfs(cluster: Slurm, built: Built) -> None:
    image = built(ROOT / "recipes" / "cuda12-torch.yaml")
    words = ("--env", "OMP_NUM_THREADS=1", "--", *DDP)
    require_learnt(submit(cluster, image, "torch.sqsh", "ddp", *words))


def test_mpi_in_squashfs(cluster: Slurm, built: Built) -> None:
    image = built(ROOT / "recipes" / "cpu-mpi.yaml")
    words = (*RATE, "--", "python", f"/shared/{Path(MPI[1]).name}")
    assert fitted("node0", "node1") in submit(cluster, image, "mpi.sqsh", "mpi", *words)


def test_mpi_in_sif(cluster: Slurm, built: Built) -> None:
    image = built(ROOT / "recipes" / "cpu-mpi.yaml")
    cluster.run("apptainer", "build", "mpi.sif", "oci-archive:mpi.tar", user=_USER)
    words = (*RATE, "--", "python", f"/shared/{Path(MPI[1]).name}")
    assert fitted("node0", "node1") in submit(cluster, image, "mpi.sif", "sif", *words)


def test_the_smoke_test_runs_in_squashfs_and_leaves_nothing(cluster: Slurm, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (PROGRAM, "smoke-test", "--runtime", "slurm", "--image-file", cluster.shared / "mpi.sqsh")
    words = ("--report", report, "--store", tmp_path / "store")
    with cluster.allocated(tmp_path, _USER) as given:
        # The nodes have the folder at another path than this host.
        (tmp_path / "srun").write_text(
            (tmp_path / "srun").read_text().replace("exec docker", _REPLACED + "exec docker")
        )
        environment = {**given, "HERE": str(cluster.shared)}
        result = process.run((*command, *words), env=environment, timeout=400, check=False)
    assert report.exists(), result.stderr
    found = read(report)
    assert {check.name: check.findings for check in found.checks if check.status == "failed"} == {}, result
    results = {check.name: check.summary for check in found.checks if check.status == "passed"}
    assert results["mpirun"] == "2 ranks on 2 hosts, exact sum through mpi4py, started by srun"
    assert results["pins"].startswith("loaded: ")
    assert cluster.left() == []


def test_squashfs_has_the_variables_of_the_image(cluster: Slurm) -> None:
    script = (
        'echo "$VIRTUAL_ENV $(command -v python)"; exec python -c "import mpi4py; print(mpi4py.__version__)"'
    )
    said = cluster.run("apptainer", "exec", "mpi.sqsh", "sh", "-c", script, user=_USER)
    assert said.stdout == "/opt/venv /opt/venv/bin/python\n4.1.1\n"
