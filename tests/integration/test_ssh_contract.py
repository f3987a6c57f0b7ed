"""The ssh contract of an image, on real containers: docs/explanation/ssh.md, statement by statement."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.plan.rootfs import COMPAT
from imagebuilder.plan.sshkeys import make_keys
from tests.integration.conftest import ROOT, Built
from tests.support import recipes

GREETING = r"""env:
  GREETING: "it's \"fine\" $HOME \\ #1 = two  blanks"
"""
PORTS = {"root": 22, "trainer": 2222}
HOMES = {"root": "/root", "trainer": "/home/trainer"}
SECRETS = "/run/secrets/imagebuilder"
STRICT = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")

SUM = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
rank = world.Get_rank()
print(socket.gethostname(), world.allreduce(10 ** (2 * rank)), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running container."""

    name: str

    def exec(self, *argv: str, check: bool = True, stdin: str | None = None) -> process.Result:
        options = ("-i",) if stdin is not None else ()
        return docker("exec", *options, self.name, *argv, check=check, stdin=stdin)

    def logs(self) -> str:
        result = docker("logs", self.name)
        return result.stdout + result.stderr


class Site:
    """A network of its own, and the containers on it; all gone at the end."""

    def __init__(self, image: str, user: str) -> None:
        self.image = image
        self.user = user
        self.network = f"ssh-contract-{uuid.uuid4().hex[:8]}"
        self._names: list[str] = []
        docker("network", "create", self.network)

    def node(self, *options: str, command: tuple[str, ...] = (), wait: bool = True) -> Node:
        name = f"{self.network}-{len(self._names)}"
        self._names.append(name)
        docker(
            "run",
            "-d",
            "--name",
            name,
            "--hostname",
            name,
            "--network",
            self.network,
            *options,
            self.image,
            *command,
        )
        node = Node(name=name)
        if wait:
            self.wait(node)
        return node

    def wait(self, node: Node) -> None:
        """Wait until sshd answers: a listening socket in the node's own table of sockets."""
        listening = f":{PORTS[self.user]:04X} 00000000:0000 0A"
        deadline = time.monotonic() + 20
        while listening not in node.exec("cat", "/proc/net/tcp", check=False).stdout:
            assert time.monotonic() < deadline, f"no sshd:\n{node.logs()}"
            time.sleep(0.05)

    def run(self, *options: str, command: tuple[str, ...] = ()) -> process.Result:
        """Run a container to its end."""
        return docker("run", "--rm", "--network", self.network, *options, self.image, *command, check=False)

    def close(self) -> None:
        if self._names:
            docker("rm", "-f", "-v", *self._names, check=False)
        docker("network", "rm", self.network, check=False)


def docker(*arguments: str, check: bool = True, stdin: str | None = None) -> process.Result:
    return process.run(("docker", *arguments), timeout=120, check=check, stdin=stdin)


@pytest.fixture(scope="module", params=sorted(PORTS))
def site(
    request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """An image for root on port 22, then one for another user on 2222."""
    user = request.param
    ssh = f"{GREETING}ssh: {{port: {PORTS[user]}, user: {user}}}"
    recipe = recipes.like_shipped(tmp_path_factory.mktemp(user), f"ssh-{user}", {recipes.SSH: ssh})
    with contextlib.closing(Site(built(recipe), user)) as site:
        yield site


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_keys(tmp_path_factory.mktemp("keys") / "job")


@pytest.fixture(scope="module")
def pair(site: Site, keys: Path) -> tuple[Node, Node]:
    """Two nodes of one job. The keys are as a secret volume shows them: 0644, read-only, somebody else's."""
    options = ("-v", f"{keys}:{SECRETS}:ro", "-e", "JOB=a \"b\" $c \\ = 'd' ü")
    return site.node(*options), site.node(*options)


def job_keys(folder: Path) -> Path:
    make_keys(folder, name="contract")
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
        shutil.chown(file, 4321, 4321)
    return folder


def operator_keys(folder: Path, site: Site, kind: str) -> Path:
    """Make what the Kubeflow MPI operator mounts at ~/.ssh: a pair, and a folder that all can write."""
    folder.mkdir()
    private = folder / f"id_{kind}"
    process.run(("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", private), timeout=60)
    shutil.copyfile(f"{private}.pub", folder / "authorized_keys")
    # Its mode for root's containers, and for others, which could not read root's file otherwise.
    private.chmod(0o600 if site.user == "root" else 0o644)
    folder.chmod(0o777)
    return folder


# --- logging in


def test_nodes_log_in_both_ways_and_check_hosts_strictly(pair: tuple[Node, Node]) -> None:
    for here, there in (pair, pair[::-1]):
        assert here.exec("sh", "-c", "cat ~/.ssh/known_hosts", check=False).code != 0
        result = here.exec(*STRICT, there.name, "hostname")
        assert (result.stdout.strip(), result.stderr) == (there.name, "")


def test_the_exit_code_of_a_remote_command_comes_through(pair: tuple[Node, Node]) -> None:
    assert pair[0].exec("ssh", pair[1].name, "exit 37", check=False).code == 37


def test_another_job_is_neither_trusted_nor_let_in(
    site: Site, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    other = site.node("-v", f"{job_keys(tmp_path / 'other')}:{SECRETS}:ro")
    trusting = other.exec("ssh", "-o", "StrictHostKeyChecking=no", pair[0].name, "true", check=False)
    assert trusting.code == 255
    assert "Permission denied (publickey)" in trusting.stderr
    strict = pair[0].exec("ssh", other.name, "true", check=False)
    assert strict.code == 255
    assert "Host key verification failed" in strict.stderr


def test_without_keys_nobody_gets_in(site: Site, pair: tuple[Node, Node]) -> None:
    bare = site.node()
    ssh = (
        "ssh",
        "-v",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    )
    refused = pair[0].exec(*ssh, bare.name, "true", check=False)
    assert refused.code == 255
    assert "Permission denied (publickey)." in refused.stderr
    # Not even asked for: a server that took passwords would say so here.
    offered = [line for line in refused.stderr.splitlines() if "Authentications that can continue" in line]
    assert offered
    assert all(line.endswith("continue: publickey") for line in offered)


def test_containers_without_keys_have_host_keys_of_their_own(site: Site) -> None:
    def host_key(node: Node) -> str:
        scan = node.exec("ssh-keyscan", "-p", str(PORTS[site.user]), "-t", "ed25519", "localhost")
        return scan.stdout.split()[-1]

    first, second = host_key(site.node()), host_key(site.node())
    assert len(first) > 60
    assert first != second


def test_the_image_holds_no_keys(site: Site) -> None:
    find = (
        "find",
        "/etc/ssh",
        "/root",
        "/home",
        "/run",
        "/tmp",
        "-name",
        "*host*key*",
        "-o",
        "-name",
        "id_*",
    )
    result = site.run("--entrypoint", find[0], "--user", "0", command=find[1:])
    assert (result.code, result.stdout, result.stderr) == (0, "", "")


def test_64_nodes_may_log_in_at_once(pair: tuple[Node, Node]) -> None:
    script = "for i in $(seq 64); do ssh -o BatchMode=yes $0 true || echo failed & done; wait"
    result = pair[0].exec("bash", "-c", script, pair[1].name)
    assert (result.stdout, result.stderr) == ("", "")


# --- environment and MPI


def test_the_environment_is_the_same_however_one_comes_in(site: Site, pair: tuple[Node, Node]) -> None:
    here, there = pair
    env = ("env", "-0")
    ways = {
        "exec": there.exec(*env),
        "login shell": there.exec("bash", "-lc", "env -0"),
        "ssh": here.exec("ssh", there.name, "env -0"),
        "ssh, login shell": here.exec("ssh", there.name, "bash -lc 'env -0'"),
    }
    seen = {way: variables(result.stdout) for way, result in ways.items()}
    assert seen["exec"]["JOB"] == "a \"b\" $c \\ = 'd' ü"
    assert seen["exec"]["GREETING"] == 'it\'s "fine" $HOME \\ #1 = two  blanks'
    assert seen["exec"]["PATH"].startswith("/opt/venv/bin:")
    assert seen["exec"]["HOME"] == HOMES[site.user]
    for way, values in seen.items():
        assert values == seen["exec"], way
    # mpirun takes its own settings out of a rank's environment, and puts in what describes the rank.
    for node in pair:
        rank = variables(here.exec("mpirun", "-np", "1", "--host", node.name, *env).stdout)
        assert without_mpi(rank) == without_mpi(seen["exec"]), node.name


def test_a_library_path_of_ones_own_reaches_the_ranks_unchanged(site: Site, keys: Path) -> None:
    options = ("-v", f"{keys}:{SECRETS}:ro", "-e", "LD_LIBRARY_PATH=/opt/mine:/opt/other")
    here, there = site.node(*options), site.node(*options)
    for node in (here, there):
        result = here.exec("mpirun", "-np", "1", "--host", node.name, "printenv", "LD_LIBRARY_PATH")
        assert result.stdout == "/opt/mine:/opt/other\n"


@pytest.mark.parametrize(("driver", "added"), [("535.54.03", True), ("580.65.06", False)])
def test_cuda_compat_reaches_ssh_and_ranks_where_the_driver_is_old(
    site: Site, keys: Path, tmp_path: Path, driver: str, added: bool
) -> None:
    compat = "/usr/local/cuda/compat"
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.570.86.15").write_text('"driver":[535,550,570]')
    (folder / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Jan  7\n")
    # Nothing can be mounted into /proc, and no variable names another file: the script is another one.
    script = (ROOT / "imagebuilder/plan/files/cuda-compat.sh").read_text()
    (tmp_path / "script").write_text(script.replace("/proc/driver/nvidia/version", f"{compat}/version"))
    mounts = ("-v", f"{folder}:{compat}:ro", "-v", f"{tmp_path / 'script'}:{COMPAT}:ro")
    options = (*mounts, "-v", f"{keys}:{SECRETS}:ro", "-e", "LD_LIBRARY_PATH=/opt/mine")
    here, there = site.node(*options), site.node(*options)
    ask = ("printenv", "LD_LIBRARY_PATH")
    ways = {
        "command": site.run(*options, command=ask),
        "login shell": here.exec("bash", "-lc", " ".join(ask)),
        "ssh": here.exec("ssh", there.name, *ask),
        **{
            f"rank on {node.name}": here.exec(
                "bash", "-lc", f"mpirun -np 1 --host {node.name} {' '.join(ask)}"
            )
            for node in (here, there)
        },
    }
    expected = f"{compat}:/opt/mine" if added else "/opt/mine"
    assert {way: result.stdout.strip() for way, result in ways.items()} == dict.fromkeys(ways, expected)
    # The engine starts it, with the image's variables.
    assert here.exec(*ask).stdout == "/opt/mine\n"


def variables(text: str) -> dict[str, str]:
    """Read `env -0`, without what a shell or a login makes for its process alone."""
    own = {"USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"}
    pairs = (item.partition("=") for item in text.split("\0") if "=" in item)
    return {name: value for name, _, value in pairs if name not in own and not name.startswith("SSH_")}


def without_mpi(values: dict[str, str]) -> dict[str, str]:
    prefixes = ("OMPI_", "PMIX_", "PRTE_", "OPAL_")
    return {name: value for name, value in values.items() if not name.startswith(prefixes)}


def test_ssh_finds_the_tools_of_the_image(pair: tuple[Node, Node]) -> None:
    result = pair[0].exec("ssh", pair[1].name, "command -v python mpirun prted")
    assert result.stdout.split() == ["/opt/venv/bin/python", "/usr/bin/mpirun", "/usr/bin/prted"]


def test_mpirun_adds_up_over_two_nodes(pair: tuple[Node, Node]) -> None:
    hosts = ",".join(f"{node.name}:2" for node in pair)
    result = pair[0].exec("mpirun", "-np", "4", "--host", hosts, "python", "-c", SUM)
    expected = sorted(f"{node.name} 1010101" for node in pair for _ in range(2))
    assert sorted(result.stdout.split("\n")[:-1]) == expected


def test_mpirun_binds_no_rank_to_one_core(pair: tuple[Node, Node]) -> None:
    result = pair[0].exec("mpirun", "-np", "2", "--host", f"{pair[0].name}:2", "nproc")
    assert result.stdout.split() == [pair[0].exec("nproc").stdout.strip()] * 2


def test_mpirun_fails_when_a_remote_rank_fails(pair: tuple[Node, Node]) -> None:
    # Rank 0 works on, and has to be ended: both ending at once is a race that PRRTE can wait in for ever.
    script = 'test "$OMPI_COMM_WORLD_RANK" = 0 || exit 9; exec sleep 100'
    hosts = ",".join(node.name for node in pair)
    assert pair[0].exec("mpirun", "-np", "2", "--host", hosts, "sh", "-c", script, check=False).code == 9


def test_a_variable_of_several_lines_is_named_and_left_out(site: Site) -> None:
    node = site.node("-e", "TWO=one\ntwo", "-e", "ONE=1")
    assert "TWO is not passed on" in node.logs()
    assert "more than one line" in node.logs()


def test_a_very_long_environment_does_not_lock_the_node(
    site: Site, pair: tuple[Node, Node], keys: Path
) -> None:
    variables = [option for name in "ABC" for option in ("-e", f"{name}={name * 90_000}")]
    node = site.node("-v", f"{keys}:{SECRETS}:ro", *variables)
    lengths = {
        name: pair[0].exec("ssh", node.name, f"echo ${{#{name}}}").stdout.strip()
        for name in ("A", "B", "C", "GREETING")
    }
    # Engines give no promise in which order variables come.
    left_out = [name for name, length in lengths.items() if length == "0"]
    assert len(left_out) == 1
    assert f"{left_out[0]} is not passed on" in node.logs()
    assert sorted(lengths.values()).count("90000") == 2


# --- a container's life


def test_a_command_runs_as_if_there_were_no_entrypoint(site: Site) -> None:
    script = 'printf "%s|" "$@"; umask; exit 5'
    result = site.run(command=("sh", "-c", script, "sh", "two words", "$HOME", ""))
    assert (result.code, result.stdout, result.stderr) == (5, "two words|$HOME||0022\n", "")


def test_sshd_runs_beside_a_command_and_is_not_its_child(
    site: Site, pair: tuple[Node, Node], keys: Path
) -> None:
    # `os.wait` takes any child: an sshd among them would keep it waiting for ever.
    script = """
import os, time
try:
    os.wait()
except ChildProcessError:
    print("alone", flush=True)
time.sleep(600)
"""
    node = site.node("-v", f"{keys}:{SECRETS}:ro", command=("python", "-c", script))
    assert pair[0].exec(*STRICT, node.name, "hostname").stdout.strip() == node.name
    assert node.logs() == "alone\n"


def test_sshd_can_be_left_out(site: Site) -> None:
    script = "ls -A /run/imagebuilder /tmp/imagebuilder-* 2>/dev/null | grep sshd.pid; cat /proc/net/tcp"
    result = site.run("-e", "IMAGEBUILDER_SSHD=off", command=("sh", "-c", script))
    assert result.code == 0
    assert "sshd.pid" not in result.stdout
    assert f":{PORTS[site.user]:04X} " not in result.stdout
    nothing = site.run("-e", "IMAGEBUILDER_SSHD=off")
    assert nothing.code == 78
    assert "there is nothing to run" in nothing.stderr


@pytest.mark.parametrize("command", [(), ("python", "-c", "import time; time.sleep(600)")])
def test_a_node_stops_at_once(site: Site, command: tuple[str, ...]) -> None:
    node = site.node(command=command)
    start = time.monotonic()
    docker("stop", "-t", "10", node.name)
    # Long before the engine would kill it; the rest is for a busy host.
    assert time.monotonic() - start < 6


def test_a_restarted_node_works_again(site: Site, pair: tuple[Node, Node], keys: Path) -> None:
    node = site.node("-v", f"{keys}:{SECRETS}:ro")
    docker("restart", "-t", "10", node.name)
    site.wait(node)
    assert pair[0].exec(*STRICT, node.name, "hostname").stdout.strip() == node.name


@pytest.mark.parametrize("options", [(), ("--init",)])
def test_orphans_are_reaped(site: Site, options: tuple[str, ...]) -> None:
    node = site.node(*options)
    node.exec("sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.1 &) done; sleep 0.5")
    assert "Z" not in node.exec("ps", "-eo", "stat=").stdout
    assert "tini" not in node.logs()


# --- where keys come from


def test_a_kubernetes_secret_works(site: Site, keys: Path, tmp_path: Path) -> None:
    # A secret volume: files are links to ..data/NAME, and ..data is a link to a dated folder.
    volume = tmp_path / "volume"
    shutil.copytree(keys, volume / "..2024_01_01")
    (volume / "..data").symlink_to("..2024_01_01")
    for file in keys.iterdir():
        (volume / file.name).symlink_to(f"..data/{file.name}")
    tmp_path.chmod(0o755)
    first, second = (site.node("-v", f"{volume}:{SECRETS}:ro") for _ in range(2))
    assert first.exec(*STRICT, second.name, "hostname").stdout.strip() == second.name


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_the_layout_of_the_mpi_operator_works(site: Site, kind: str, tmp_path: Path) -> None:
    folder = operator_keys(tmp_path / "ssh", site, kind)
    volume = ("-v", f"{folder}:{HOMES[site.user]}/.ssh:ro")
    launcher = site.node(*volume, command=("sleep", "600"))
    # The operator replaces the entrypoint of a worker by its own command.
    worker = site.node(*volume, "--entrypoint", "/usr/sbin/sshd", command=("-De",))
    result = launcher.exec(*STRICT, worker.name, "hostname; command -v python; echo $GREETING")
    assert result.stdout.split("\n")[:2] == [worker.name, "/opt/venv/bin/python"]
    assert "fine" in result.stdout
    hosts = f"{launcher.name},{worker.name}"
    ranks = launcher.exec("mpirun", "-np", "2", "--host", hosts, "python", "-c", SUM)
    assert sorted(ranks.stdout.split("\n")[:-1]) == sorted(f"{node.name} 101" for node in (launcher, worker))


def test_sshd_as_the_arguments_of_a_container_keeps_the_entrypoint(
    site: Site, pair: tuple[Node, Node], keys: Path
) -> None:
    node = site.node("-v", f"{keys}:{SECRETS}:ro", command=("/usr/sbin/sshd", "-De"))
    assert pair[0].exec(*STRICT, node.name, "hostname").stdout.strip() == node.name


def test_a_lone_private_key_in_a_folder_of_ones_own_is_enough(site: Site, keys: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copyfile(keys / "id_ed25519", folder / "id_ed25519")
    (folder / "id_ed25519").chmod(0o644)
    tmp_path.chmod(0o755)
    options = ("-v", f"{folder}:/scratch/mine:ro", "-e", "IMAGEBUILDER_KEYS=/scratch/mine")
    first, second = site.node(*options), site.node(*options)
    assert first.exec(*STRICT, second.name, "hostname").stdout.strip() == second.name


def test_the_authority_of_a_site_lets_its_users_in(site: Site, tmp_path: Path) -> None:
    def keygen(*arguments: str) -> None:
        process.run(("ssh-keygen", "-q", *arguments), timeout=60)

    folder = tmp_path / "site"
    folder.mkdir()
    authority, user = tmp_path / "authority", folder / "id_ed25519"
    for file in (authority, user):
        keygen("-t", "ed25519", "-N", "", "-f", str(file))
    keygen("-s", str(authority), "-I", "somebody", "-n", site.user, f"{user}.pub")
    shutil.copyfile(f"{authority}.pub", folder / "user_ca.pub")
    user.chmod(0o644)
    tmp_path.chmod(0o755)
    first, second = (site.node("-v", f"{folder}:{SECRETS}:ro") for _ in range(2))
    assert first.exec(*STRICT, second.name, "hostname").stdout.strip() == second.name


def test_keys_that_do_not_work_stop_the_container_and_say_why(site: Site, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    tmp_path.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir()
    process.run(
        ("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked / "id_ed25519"), timeout=60
    )
    (locked / "id_ed25519").chmod(0o644)
    for folder in (broken, locked):
        result = site.run("-v", f"{folder}:{SECRETS}:ro", command=("true",))
        assert result.code == 78
        assert "id_ed25519 is no private key that works without a passphrase" in result.stderr
    missing = site.run("-e", "IMAGEBUILDER_KEYS=/nowhere", command=("true",))
    assert missing.code == 78
    assert "IMAGEBUILDER_KEYS names /nowhere" in missing.stderr
    empty = site.run("-e", "IMAGEBUILDER_KEYS=/mnt", command=("true",))
    assert empty.code == 78
    assert "holds no id_*" in empty.stderr


def test_keys_that_are_another_user_s_alone_are_reported(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    make_keys(folder, name="contract")
    tmp_path.chmod(0o755)
    closed = site.run("-v", f"{folder}:{SECRETS}:ro", command=("echo", "ran"))
    folder.chmod(0o755)
    unreadable = site.run("-v", f"{folder}:{SECRETS}:ro", command=("echo", "ran"))
    if site.user == "root":
        assert (closed.stdout, unreadable.stdout) == ("ran\n", "ran\n")
    else:
        assert (closed.code, unreadable.code) == (78, 78)
        assert f"uid 1000 cannot enter {SECRETS}; give it to that uid" in closed.stderr
        assert f"uid 1000 cannot read {SECRETS}/id_ed25519; give it to that uid" in unreadable.stderr


# --- containers with less than the usual


def test_a_read_only_root_needs_two_tmpfs(site: Site, keys: Path) -> None:
    options = ("--read-only", "-v", f"{keys}:{SECRETS}:ro")
    first, second = (site.node(*options, "--tmpfs", "/tmp", "--tmpfs", "/run") for _ in range(2))
    assert first.exec(*STRICT, second.name, "hostname").stdout.strip() == second.name
    refused = site.run(*options)
    assert refused.code == 78
    assert "with a read-only root mount a tmpfs at" in refused.stderr
    job = site.run(*options, command=("echo", "ran"))
    assert (job.code, job.stdout) == (0, "ran\n")
    assert "no ssh in this container" in job.stderr


def test_an_id_that_gets_no_name_runs_commands_and_is_told_why_there_is_no_ssh(site: Site) -> None:
    reasons = {
        "root": "this image's sshd is root's, and the container runs as uid 33; "
        "build it with `ssh: {user: ..., port: 2222}` in the recipe\n",
        "trainer": "uid 33 has no name to log in with, and ids below 500 cannot get one; "
        "run the container as `trainer`, or with an id from 500 on\n",
    }
    job = site.run("--user", "33", command=("echo", "ran"))
    assert (job.code, job.stdout) == (0, "ran\n")
    assert job.stderr == f"imagebuilder-entrypoint: no ssh in this container: {reasons[site.user]}"
    node = site.run("--user", "33")
    assert (node.code, node.stderr) == (78, f"imagebuilder-entrypoint: sshd cannot run: {reasons[site.user]}")


def test_a_private_folder_of_somebody_else_is_not_used(site: Site) -> None:
    folder = "/run/imagebuilder" if site.user == "root" else f"/tmp/imagebuilder-{site.user}"
    result = site.run("--tmpfs", f"{folder}:uid=4321,mode=0777", command=("echo", "ran"))
    assert (result.code, result.stdout) == (0, "ran\n")
    assert f"{folder} belongs to somebody else" in result.stderr
