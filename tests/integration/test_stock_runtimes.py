"""Jobs as a cluster's runtimes start them, unchanged for our images, with containers that play the pods.

What each runtime gives its pods was read in its source: Kubeflow Trainer 2.3
(charts/kubeflow-trainer/files/runtimes, pkg/runtime/framework/plugins), mpi-operator 0.8.2
(pkg/controller/mpi_job_controller.go), JobSet 0.12, CRI-O (pkg/container, `GeneratePasswd`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.plan.sshkeys import make_keys
from tests.integration.conftest import Built
from tests.support import recipes
from tests.support.pods import SCRIPTS, Pods, cloud_variables, docker, given, operator_keys, pods, volume

HOME = "/home/mpiuser"
SECRETS = "/run/secrets/imagebuilder"
# Open MPI 4's names, which Open MPI 5 does not read; mpi-operator and Trainer set the same ones.
OPEN_MPI = given(
    {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": "1",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
)
# A user id and a group as OpenShift chooses them.
CHOSEN = ("--user", "1000650000:0")
FIT = ("python", f"{SCRIPTS}/mpi_regression.py")


@pytest.fixture(scope="module")
def image(built: Built, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image for the stock MPI runtimes: its user and port are theirs, and nothing else."""
    ssh = "ssh: {port: 2222, user: mpiuser}"
    return built(recipes.like_shipped(tmp_path_factory.mktemp("stock"), "stock", {recipes.SSH: ssh}))


@pytest.fixture
def job(image: str) -> Iterator[Pods]:
    with pods(image) as lent:
        yield lent


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    """A job's keys as a Secret with `defaultMode: 0444` shows them."""
    folder = tmp_path / "job"
    make_keys(folder, name="stock")
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o755)
    tmp_path.chmod(0o755)
    return ("-v", f"{folder}:{SECRETS}:ro")


def fitted(hosts: str) -> str:
    return f"ranks 2 on {hosts} | rate 0.01 | y = 2.217 x + -1.965 | same True\n"


def await_port(name: str) -> None:
    """Wait as a probe does that connects to the port and hangs up."""
    docker(
        "exec", name, "bash", "-c", "until (exec 3<>/dev/tcp/127.0.0.1/2222) 2>/dev/null; do sleep 0.1; done"
    )


# --- MPI runtimes: the launcher's command takes the place of the entrypoint, and the launcher is a node too


@pytest.mark.parametrize(
    ("hosts", "worker_command"),
    [
        # Kubeflow Trainer 2: names of its JobSet, and sshd with a file in mpiuser's home.
        (("fit-launcher-0-0.fit", "fit-node-0-0.fit"), ["-De", "-f", f"{HOME}/.sshd_config"]),
        # mpi-operator with `runLauncherAsWorker: true`.
        (("fit-launcher.fit.team.svc", "fit-worker-0.fit.team.svc"), ["-De"]),
    ],
    ids=["trainer", "mpi-operator"],
)
def test_a_bare_mpirun_uses_all_nodes_of_the_stock_mpi_runtimes(
    hosts: tuple[str, str], worker_command: list[str], job: Pods, tmp_path: Path
) -> None:
    launcher, worker = hosts
    # `fsGroup: 1000`: the files are root's and that group's, the private key 0640.
    secret = operator_keys(tmp_path / "keys", mode=0o640, group=1000)
    config = volume(
        tmp_path / "config", {"hostfile": "".join(f"{host} slots=1\n" for host in hosts).encode()}, 0o444
    )
    tmp_path.chmod(0o755)
    pod = ("--user", "1000", "--group-add", "1000", "-v", f"{secret}:{HOME}/.ssh:ro")

    def short(host: str) -> tuple[str, str]:
        return "--hostname", host.partition(".")[0]

    node = job.start(worker, *pod, *short(worker), "--entrypoint", "/usr/sbin/sshd", command=worker_command)
    await_port(node)
    options = (*pod, *short(launcher), "-v", f"{config}:/etc/mpi:ro", *OPEN_MPI, "--entrypoint", "mpirun")
    result = job.run(launcher, *options, command=FIT)
    assert result.stdout == fitted(" ".join(host.partition(".")[0] for host in hosts))


# On the first node. dstack writes the file of hosts itself. `--host` with addresses does not work, for Open
# MPI 5.0.7 then misses the node that it runs on.
CLOUDS = {
    "skypilot": 'echo "$SKYPILOT_NODE_IPS" >/tmp/nodes; mpirun --hostfile /tmp/nodes '
    '-n "$SKYPILOT_NUM_NODES" -N "$SKYPILOT_NUM_GPUS_PER_NODE" ',
    "dstack": 'mpirun --hostfile "$DSTACK_MPI_HOSTFILE" -n "$DSTACK_GPUS_NUM" -N "$DSTACK_GPUS_PER_NODE" ',
}


@pytest.mark.parametrize("cloud", sorted(CLOUDS))
def test_mpirun_with_the_variables_of_a_cloud(cloud: str, job: Pods, keys: tuple[str, ...]) -> None:
    names = [job.start(f"node{rank}", *keys) for rank in range(2)]
    addresses = [job.address(name) for name in names]
    lines = "".join(f"{address} slots=1\n" for address in addresses)
    docker("exec", names[0], "sh", "-c", f"printf %s '{lines}' >/tmp/hostfile")
    values = given({**cloud_variables(addresses, 0), "DSTACK_MPI_HOSTFILE": "/tmp/hostfile"})
    result = docker("exec", *values, names[0], "bash", "-c", f"{CLOUDS[cloud]} {' '.join(FIT)}")
    assert result.stdout == fitted("node0 node1")


# --- names that appear late


def test_mpirun_waits_for_a_node_that_has_no_name_yet(job: Pods, keys: tuple[str, ...]) -> None:
    hosts = ("fit-node-0-0.fit", "fit-node-0-1.fit")
    command = ("mpirun", "--host", ",".join(hosts), *FIT)
    launcher = job.start(hosts[0], *keys, command=command)
    time.sleep(5)
    job.start(hosts[1], *keys)
    assert docker("wait", launcher).stdout == "0\n"
    said = docker("logs", launcher)
    assert said.stdout == fitted(" ".join(hosts))
    assert f"{hosts[1]} has no address yet; waiting for it up to 60 s" in said.stderr


def test_the_wait_for_a_name_ends(job: Pods, keys: tuple[str, ...]) -> None:
    script = "time ssh nobody-0.fit true"
    wait = ("-e", "IMAGEBUILDER_WAIT=2")
    start = time.monotonic()
    result = docker("run", "--rm", *keys, *wait, job.image, "bash", "-c", script, check=False)
    assert time.monotonic() - start < 20
    assert result.code == 255
    assert "ssh: Could not resolve hostname nobody-0.fit" in result.stderr


# --- user ids that the cluster chose


@pytest.mark.parametrize(
    ("options", "home"),
    [
        (CHOSEN, "770 1000"),
        # Kubernetes without OpenShift's group 0.
        (("--user", "1000650000:5000"), "700 1000650000"),
        ((*CHOSEN, "--read-only", "--tmpfs", "/tmp:mode=1777"), "700 1000650000"),
        # CRI-O gives the id a name that cannot log in.
        ("cri-o", "770 1000"),
    ],
    ids=["openshift", "another-group", "read-only", "cri-o"],
)
def test_an_id_without_a_name_has_ssh_and_mpi(
    options: tuple[str, ...] | str, home: str, job: Pods, keys: tuple[str, ...], tmp_path: Path
) -> None:
    if isinstance(options, str):
        passwd = docker("run", "--rm", "--entrypoint", "cat", job.image, "/etc/passwd").stdout
        made = tmp_path / "passwd"
        made.write_text(f"{passwd}default:x:1000650000:0:default user:{HOME}:/sbin/nologin\n")
        options = (*CHOSEN, "-v", f"{made}:/etc/passwd:ro")
    first, second = (job.start(host, *options, *keys) for host in ("first", "second"))
    await_port(second)
    # The home of the image, where the id may write to it, else one of its own.
    script = 'id -un; id -u; cd; touch here && stat -c "%a %u" .'
    result = docker("exec", first, "ssh", "second", script)
    assert (result.stdout, result.stderr) == (f"mpiuser\n1000650000\n{home}\n", "")
    # A command that the engine starts later begins in the image's home, which another group may not enter.
    ranks = docker("exec", "-w", "/tmp", first, "mpirun", "--host", "first,second", *FIT)
    assert ranks.stdout == fitted("first second")
    python = docker("exec", first, "python", "-c", "import getpass; print(getpass.getuser())")
    assert python.stdout == "mpiuser\n"
    alone = job.run("alone", *options, command=("mpirun", "-n", "2", "--oversubscribe", *FIT))
    assert alone.stdout == fitted("alone alone")


def test_a_name_of_ones_own_making_gives_no_rights(job: Pods) -> None:
    """Lines that the user writes into the file of names: no other root, and no other password of root's."""
    lines = "".join(
        f"{name}::{uid}:65534::/:/bin/sh\n" for name, uid in (("evil", 0), ("root", 0), ("bin2", 2))
    )
    node = job.start("node", *CHOSEN, command=("sleep", "600"))

    def sh(script: str) -> str:
        return docker("exec", node, "sh", "-c", script, check=False).stdout

    sh(f"printf %s '{lines}' >>/tmp/imagebuilder-mpiuser/passwd")
    assert sh("tail -n 1 /var/lib/extrausers/passwd") == "bin2::2:65534::/:/bin/sh\n"
    assert (
        sh("for name in evil bin2 root; do getent passwd $name; done") == "root:x:0:0:root:/root:/bin/bash\n"
    )
    assert sh("for name in evil root; do su $name -c id </dev/null; done") == ""
    assert sh("stat -c '%a %u' /etc/passwd /etc/nsswitch.conf") == "644 0\n644 0\n"
