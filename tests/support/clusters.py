"""Containers that play the nodes of a Slurm cluster, or plain hosts with Docker and sshd."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagebuilder.core import process
from tests.support.pods import Pods, docker, pods

SHARED = "/shared"
# Slurm as it runs in containers without privileges. Two ranks fit on each node, whatever this host has.
_SLURM = """
ClusterName=test
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
NodeName=node[0-1] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""
# The nodes share a key. `mungeuser` is the same user with another id in each release of Debian.
_NODE = """
set -e
mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd /etc/slurm
cp /shared/munge.key /etc/munge/munge.key
chown -R munge:munge /etc/munge /run/munge /var/lib/munge /var/log/munge
chmod 0400 /etc/munge/munge.key
cp /shared/slurm.conf /etc/slurm/slurm.conf
[ ! -e /dev/fuse ] || chmod 0666 /dev/fuse  # as udev sets it on a host
setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
[ "$(hostname)" != node0 ] || /usr/sbin/slurmctld
/usr/sbin/slurmd
exec sleep infinity
"""
_START_SECONDS = 60
_JOB_SECONDS = 300


class Slurm:
    """Two nodes, of which the first is also the controller; `shared` is on both as /shared."""

    def __init__(self, lent: Pods, shared: Path, options: Sequence[str]) -> None:
        self.image = lent.image
        self.shared = shared
        (shared / "munge.key").write_bytes(secrets.token_bytes(128))
        (shared / "slurm.conf").write_text(_SLURM)
        options = ("-v", f"{shared}:{SHARED}", "--shm-size", "1g", "--entrypoint", "bash", *options)
        self.nodes = [lent.start(host, *options, command=["-c", _NODE]) for host in ("node0", "node1")]
        self._await_nodes()

    def run(
        self, *words: str, user: str = "root", folder: str = SHARED, check: bool = True
    ) -> process.Result:
        """Run a command on the first node, in a login shell, as a person would type it."""
        command = ("docker", "exec", "--user", user, "--workdir", folder, self.nodes[0])
        line = shlex.join(words)
        return process.run((*command, "bash", "-lc", line), timeout=_JOB_SECONDS, check=check)

    def submit(self, folder: str, *options: str, user: str = "root") -> tuple[str, str]:
        """Submit `job.sh` in a folder, and wait; returns the job's state and all that it said."""
        number = self.run("sbatch", "--parsable", *options, "job.sh", folder=folder, user=user).stdout.strip()
        ends = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < ends:
            facts = self.run("scontrol", "show", "job", number).stdout
            state = facts.partition("JobState=")[2].split()[0]
            if state not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
                break
            time.sleep(0.5)
        else:
            raise AssertionError(f"the job does not end:\n{facts}")
        said = self.run("cat", f"{folder}/slurm-{number}.out", check=False)
        return state, said.stdout + said.stderr

    @contextlib.contextmanager
    def allocated(self, folder: Path, user: str = "root") -> Iterator[dict[str, str]]:
        """Lend an allocation of both nodes: variables with which `srun` here is the first node's."""
        said = self.run("salloc", "--no-shell", "--nodes=2", "--ntasks-per-node=2", user=user).stderr
        number = said.partition("Granted job allocation ")[2].split()[0]
        given = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "node[0-1]"}
        variables = (f"--env={name}={value}" for name, value in given.items())
        options = ("exec", "-i", "--user", user, "--workdir", SHARED, *variables)
        for program in ("srun", "scontrol"):
            words = shlex.join(("docker", *options, self.nodes[0], "bash", "-lc", f'exec {program} "$@"'))
            (folder / program).write_text(f'#!/bin/sh\nexec {words} {program} "$@"\n')
            (folder / program).chmod(0o755)
        try:
            yield {**given, "PATH": f"{folder}:{os.environ['PATH']}"}
        finally:
            self.run("scancel", number, user=user)

    def left(self) -> list[str]:
        """List the smoke test's folders and processes on the nodes."""
        script = "ls -d /tmp/[i]magebuilder-smoke* 2>/dev/null; pgrep -fa '[i]magebuilder-smoke'"
        said = [docker("exec", node, "sh", "-c", script, check=False).stdout for node in self.nodes]
        return [line for text in said for line in text.splitlines()]

    def _await_nodes(self) -> None:
        ends = time.monotonic() + _START_SECONDS
        while time.monotonic() < ends:
            states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).stdout.split()
            if states == ["idle", "idle"]:
                return
            time.sleep(0.5)
        logs = "".join(docker("logs", node, check=False).stderr for node in self.nodes)
        raise AssertionError(f"the nodes do not come up: {states}\n{logs}")


@contextlib.contextmanager
def slurm(image: str, shared: Path, *options: str) -> Iterator[Slurm]:
    """Lend a cluster, with more options of `docker run`."""
    with pods(image) as lent:
        yield Slurm(lent, shared, options)


# `host` is the network of the container that plays the host, not of the machine that the engine runs on. Its
# folders have another path on that machine.
_AS_ON_A_HOST = """#!/bin/bash
words=() last=
for word; do
    [[ $last == --network && $word == host ]] && word=container:$CONTAINER
    [[ $last == --volume && $word == /root/* ]] && word=$HOME_OUTSIDE${word#/root}
    words+=("$word") last=$word
done
exec /usr/local/lib/docker "${words[@]}"
"""


class Hosts:
    """Hosts with sshd and Docker; `homes` are the folders of root on them."""

    def __init__(self, lent: Pods, folder: Path, keys: Path, names: Sequence[str]) -> None:
        socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        program = folder / "docker"
        program.write_text(_AS_ON_A_HOST)
        program.chmod(0o755)
        self.containers: dict[str, str] = {}
        self.homes = {name: folder / name for name in names}
        for name, home in self.homes.items():
            home.mkdir()
            options = (
                *("-v", f"{keys}:/run/secrets/imagebuilder:ro", "-v", f"{home}:/root"),
                *("-v", f"{socket}:/var/run/docker.sock", "-v", f"{_docker()}:/usr/local/lib/docker:ro"),
                *("-v", f"{program}:/usr/local/bin/docker:ro", "-e", f"HOME_OUTSIDE={home}"),
                *("-e", f"CONTAINER={lent.job}-{name}"),
            )
            self.containers[name] = lent.start(name, *options)

    def run(self, host: str, folder: str, *words: str, check: bool = True) -> process.Result:
        """Run a command on a host, in a folder of its home."""
        command = ("docker", "exec", "--workdir", f"/root/{folder}", self.containers[host])
        return process.run((*command, *words), timeout=_JOB_SECONDS, check=check)


def _docker() -> str:
    return process.run(("which", "docker"), timeout=10).stdout.strip()
