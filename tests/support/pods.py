"""Containers as a scheduler starts them: a network, host names, mounted keys and scripts, a command."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from imagebuilder.core import process

PEERS = Path(__file__).resolve().parents[1] / "cases" / "peers"
SCRIPTS = "/workspace"


class Pods:
    """Containers of one job on a network of their own."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.job = f"job-{uuid.uuid4().hex[:8]}"
        self._names: list[str] = []
        docker("network", "create", self.job)

    def start(self, host: str, *options: str, command: Sequence[str] = ()) -> str:
        """Start a container that others reach by its host name; its name in the engine."""
        name = f"{self.job}-{host}"
        self._names.append(name)
        docker("run", "-d", "--name", name, *self._options(host), *options, self.image, *command)
        return name

    def run(self, host: str, *options: str, command: Sequence[str]) -> process.Result:
        """Run a container to its end."""
        return docker("run", "--rm", *self._options(host), *options, self.image, *command)

    def address(self, name: str) -> str:
        """Return the address of a container on the job's network."""
        place = f'{{{{(index .NetworkSettings.Networks "{self.job}").IPAddress}}}}'
        return docker("inspect", "--format", place, name).stdout.strip()

    def close(self) -> None:
        if self._names:
            docker("rm", "-f", "-v", *self._names, check=False)
        docker("network", "rm", self.job, check=False)

    def _options(self, host: str) -> tuple[str, ...]:
        mount = f"{PEERS}:{SCRIPTS}:ro"
        return ("--hostname", host, "--network", self.job, "--network-alias", host, "-v", mount)


@contextlib.contextmanager
def pods(image: str) -> Iterator[Pods]:
    """Lend a job's containers; they are removed at the end."""
    with contextlib.closing(Pods(image)) as lent:
        yield lent


def docker(*arguments: str, check: bool = True) -> process.Result:
    return process.run(("docker", *arguments), timeout=300, check=check)


def volume(folder: Path, files: Mapping[str, bytes], mode: int) -> Path:
    """Lay files out as Kubernetes mounts a Secret or a ConfigMap: links to links, in a folder open to all."""
    dated = folder / "..2024_05_01_10_00_00.123456789"
    dated.mkdir(parents=True)
    for name, data in files.items():
        (dated / name).write_bytes(data)
        (dated / name).chmod(mode)
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data").symlink_to(dated.name)
    folder.chmod(0o1777)
    return folder


def given(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that give a container these variables."""
    return tuple(word for name, value in values.items() for word in ("-e", f"{name}={value}"))


def cloud_variables(addresses: Sequence[str], rank: int) -> dict[str, str]:
    """Return what SkyPilot and dstack say to one node of a job with one rank a node."""
    return {
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_NODES": str(len(addresses)),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "DSTACK_NODES_NUM": str(len(addresses)),
        "DSTACK_NODE_RANK": str(rank),
        "DSTACK_MASTER_NODE_IP": addresses[0],
        "DSTACK_NODES_IPS": "\n".join(addresses),
        "DSTACK_GPUS_PER_NODE": "1",
        "DSTACK_GPUS_NUM": str(len(addresses)),
    }


def operator_keys(folder: Path, *, mode: int, group: int = 0) -> Path:
    """Make the Secret of an MPI job: one key on NIST's curve P-521 in PEM, by its mounted names.

    An MPIJob's has mode 0600 where it is mounted at /root/.ssh, and Kubernetes's own 0644 elsewhere. A
    TrainJob's private key has 0640, and the pod's `fsGroup` is the group.
    """
    folder.mkdir(parents=True)
    private = folder / "made"
    process.run(
        ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", private), timeout=60
    )
    assert private.read_bytes().startswith(b"-----BEGIN EC ")
    public = Path(f"{private}.pub").read_bytes()
    files = {"id_rsa": private.read_bytes(), "id_rsa.pub": public, "authorized_keys": public}
    made = volume(folder / "secret", files, mode)
    for file in made.iterdir():
        shutil.chown(file, 0, group)
    folder.chmod(0o755)
    return made
