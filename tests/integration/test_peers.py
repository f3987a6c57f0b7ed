"""Scripts as other people write them, in our images as they are: by torchrun, mpirun and an operator."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from imagebuilder.plan.sshkeys import make_keys
from tests.integration.conftest import ROOT, Built
from tests.support.pods import SCRIPTS, docker, given, operator_keys, pods, volume

# What the operator gives its launcher (pkg/controller/mpi_job_controller.go): Open MPI 4's names.
OPERATOR = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "1",
    "NVIDIA_VISIBLE_DEVICES": "",
    "NVIDIA_DRIVER_CAPABILITIES": "",
}
ONE_THREAD = ("-e", "OMP_NUM_THREADS=1")
HOMES = {"cpu-mpi": "/home/trainer", "cuda12-torch": "/root"}


@pytest.mark.parametrize("recipe", sorted(HOMES))
def test_a_job_of_the_kubeflow_mpi_operator(recipe: str, built: Built, tmp_path: Path) -> None:
    secret = operator_keys(tmp_path / "keys", mode=0o600 if HOMES[recipe] == "/root" else 0o644)
    tmp_path.chmod(0o755)
    keys = ("-v", f"{secret}:{HOMES[recipe]}/.ssh:ro")
    hosts = [f"fit-worker-{index}.fit-worker.team.svc" for index in range(2)]
    lines = "".join(f"{host} slots=1\n" for host in hosts)
    config = volume(tmp_path / "config", {"hostfile": lines.encode()}, 0o444)
    with pods(built(ROOT / "recipes" / f"{recipe}.yaml")) as job:
        for host in hosts:
            # Its pods have the short name for themselves, and a service makes the long one known. The command
            # takes the place of the image's entrypoint.
            short = ("--hostname", host.partition(".")[0], "--entrypoint", "/usr/sbin/sshd")
            job.start(host, *keys, *short, "-e", "K_MPI_JOB_ROLE=worker", command=["-De"])
        launcher = (*keys, "-v", f"{config}:/etc/mpi:ro", "--entrypoint", "mpirun")
        values = given({**OPERATOR, "LEARNING_RATE": "0.25"})
        script = ["-n", "2", "-x", "LEARNING_RATE", "python", f"{SCRIPTS}/mpi_regression.py"]
        result = job.run("fit-launcher", *launcher, *values, command=script)
    assert result.stdout == (
        "ranks 2 on fit-worker-0 fit-worker-1 | rate 0.25 | y = 3.000 x + -2.000 | same True\n"
    )


def test_a_ddp_script_by_torchrun_as_the_containers_command(built: Built) -> None:
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        command = [
            "torchrun",
            "--nnodes=2",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=first:29500",
            f"{SCRIPTS}/ddp_torchrun.py",
            "--snapshot=/tmp/snapshot.pt",
        ]
        # Four threads on two cores would wait for each other more than compute.
        first, second = (job.start(host, *ONE_THREAD, command=command) for host in ("first", "second"))
        codes = [docker("wait", name).stdout.strip() for name in (first, second)]
        # Which of the two agents gets rank 0 is theirs to say.
        said = [docker("logs", name) for name in (first, second)]
    log = "".join(result.stdout for result in said)
    assert codes == ["0", "0"], [result.stderr[-2000:] for result in said]
    require_learnt(log)


LAUNCH = ("python", "-m", "torch.distributed.launch")


def test_a_script_with_both_spellings_of_local_rank_by_torch_s_old_launcher(built: Built) -> None:
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        names = []
        for rank, host in enumerate(("first", "second")):
            place = ("--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=1", "--master_addr=first")
            script = (f"{SCRIPTS}/ddp_local_ranks.py", "--snapshot=/tmp/snapshot.pt")
            command = [*LAUNCH, *place, "--master_port=29500", *script]
            names.append(job.start(host, *ONE_THREAD, command=command))
        require_ended(names)
        require_learnt(docker("logs", names[0]).stdout)


def test_a_script_with_the_old_local_rank_needs_use_env_since_torch_2(built: Built) -> None:
    script = (f"{SCRIPTS}/ddp_local_rank.py", "--snapshot=/tmp/snapshot.pt")
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        refused = job.start("refused", command=[*LAUNCH, "--nproc_per_node=1", *script])
        learnt = job.start(
            "learnt", *ONE_THREAD, command=[*LAUNCH, "--use-env", "--nproc_per_node=2", *script]
        )
        require_ended([learnt])
        require_learnt(docker("logs", learnt).stdout)
        assert docker("wait", refused).stdout.strip() == "1"
        assert "error: unrecognized arguments: --local-rank=0" in docker("logs", refused).stderr


def test_a_ddp_script_by_mpirun_between_ssh_nodes(built: Built, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, name="peers")
    mount = ("-v", f"{keys}:/run/secrets/imagebuilder:ro")
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        first, second = (job.start(host, *mount, *ONE_THREAD) for host in ("first", "second"))
        await_sshd(second)
        hosts = ["--host", "first:1,second:1"]
        place = ["-x", "MASTER_ADDR=first", "-x", "MASTER_PORT=29500"]
        script = ["python", f"{SCRIPTS}/ddp_mpirun.py", "--snapshot=/tmp/snapshot.pt"]
        result = docker("exec", first, "mpirun", "-n", "2", *hosts, *place, *script)
    require_learnt(result.stdout)


def test_trainer_s_torch_runtime_with_a_master_that_starts_late(built: Built) -> None:
    """Kubeflow Trainer sets PET_* only, and its command is torchrun and a script."""
    place = {"PET_MASTER_ADDR": "fit-node-0-0.fit", "PET_MASTER_PORT": "29500"}
    size = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}
    options = ("--entrypoint", "torchrun", *ONE_THREAD)
    command = [f"{SCRIPTS}/ddp_torchrun.py", "--snapshot=/tmp/snapshot.pt"]
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        names = []
        for rank in (1, 0):
            values = given({**size, **place, "PET_NODE_RANK": str(rank)})
            names.append(job.start(f"fit-node-0-{rank}.fit", *options, *values, command=command))
            # The master has neither a container nor a name yet.
            time.sleep(5 if rank else 0)
        require_ended(names)
        require_learnt(docker("logs", names[1]).stdout)


def test_the_hook_of_enroot_makes_slurm_s_tasks_ranks(built: Built) -> None:
    image = built(ROOT / "recipes" / "cuda12-torch.yaml")
    variables = json.loads(docker("image", "inspect", "--format", "{{json .Config.Env}}", image).stdout)
    assert "PYTORCH_VERSION=2.10.0" in {line.partition("+")[0] for line in variables}
    assert "NVIDIA_GDRCOPY=enabled" in variables
    with pods(image) as job:
        names = [
            job.start(
                f"node{task}",
                *ONE_THREAD,
                *given(enroot_variables(variables, job=4711, nodes=("node0", "node1"), task=task)),
                command=["python", f"{SCRIPTS}/ddp_torchrun.py", "--snapshot=/tmp/snapshot.pt"],
            )
            for task in range(2)
        ]
        require_ended(names)
        require_learnt(docker("logs", names[0]).stdout)


def enroot_variables(image: list[str], job: int, nodes: tuple[str, ...], task: int) -> dict[str, str]:
    """Return what enroot's hook 50-slurm-pytorch adds for one task on each node: nothing without torch."""
    if not any(line.startswith("PYTORCH_VERSION=") for line in image):
        return {}
    return {
        "MASTER_ADDR": nodes[0],
        "MASTER_PORT": str(job % 4536 + 61000),
        "WORLD_SIZE": str(len(nodes)),
        "RANK": str(task),
        "LOCAL_RANK": "0",
    }


def require_ended(names: list[str]) -> None:
    """Wait for containers, and make sure that all ended with 0."""
    codes = [docker("wait", name).stdout.strip() for name in names]
    assert codes == ["0"] * len(names), [docker("logs", name).stderr[-2000:] for name in names]


def require_learnt(log: str) -> None:
    """Make sure of the script's own words: two ranks, and most points in the right quarter at the end."""
    accuracies = re.findall(r"^epoch \d \| world 2 \| accuracy ([0-9.]+)$", log, re.MULTILINE)
    assert len(accuracies) == 5, log
    assert float(accuracies[-1]) > 0.9
    assert "saved /tmp/snapshot.pt" in log


def await_sshd(name: str) -> None:
    docker("exec", name, "sh", "-c", "until ss -Hltn | grep -q ':22 '; do sleep 0.1; done")
