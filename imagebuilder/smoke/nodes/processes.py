"""Nodes as processes of this host, for hosts without a container engine, such as a pod."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from imagebuilder.catalog import Launcher
from imagebuilder.core import process
from imagebuilder.core.yamlfile import printable
from imagebuilder.smoke.gpus import QUERY, Gpu, Gpus, parse
from imagebuilder.smoke.nodes import packing
from imagebuilder.smoke.nodes.cluster import (
    FOLDER,
    PAYLOAD,
    Command,
    Outcome,
    RuntimeKind,
    stop_script,
    was_time_up,
    wrap,
)
from imagebuilder.smoke.target import SmokeOptions

# Seconds after a command's limit, which `timeout` enforces.
_SPARE = 15.0


class ProcessNode:
    """A node that is only a name. Its commands are child processes."""

    def __init__(self, name: str, folder: Path) -> None:
        """Take a name, and the folder with the payload."""
        self.name = name
        self._folder = folder

    def run(self, command: Command) -> Outcome:
        """Run a command as a child process, in the smoke folder."""
        started = time.monotonic()
        try:
            result = process.run(
                wrap(command, str(self._folder)),
                timeout=command.timeout + _SPARE,
                env=command.env,
                cwd=self._folder,
                check=False,
            )
        except process.CommandError as error:
            result = error.result
        seconds = time.monotonic() - started
        # Killed by a signal: the exit code that shells and container engines use.
        code = 128 - result.code if result.code < 0 else result.code
        return Outcome(
            code=code,
            stdout=self._anonymous(result.stdout),
            stderr=self._anonymous(result.stderr),
            seconds=seconds,
            timed_out=was_time_up(code, seconds, command),
        )

    def stop(self) -> None:
        """Kill what `run` started and still runs."""
        process.run(stop_script(str(self._folder)), timeout=_SPARE, check=False)

    def put(self, name: str, data: bytes) -> None:
        """Write a file into the smoke folder."""
        (self._folder / name).write_bytes(data)

    def _anonymous(self, text: str) -> str:
        """Remove this host's paths and name from text for a report."""
        for secret, word in (
            (str(self._folder), FOLDER),
            (sys.prefix, "/venv"),
            (str(Path.home()), "~"),
            (platform.node(), "host"),
        ):
            if len(secret) > 1:
                text = text.replace(secret, word)
        return text


class ProcessCluster:
    """Several such nodes, all on this host."""

    kind: RuntimeKind = "process"
    subnet = "127.0.0.0/8"

    def __init__(
        self, nodes: tuple[ProcessNode, ...], folder: Path, gpus: tuple[tuple[Gpu, ...], ...] = ()
    ) -> None:
        """Take the nodes, and the GPUs of each; none on CPUs."""
        self._nodes = nodes
        self._gpus = gpus
        self.folder = str(folder)
        self.shared = f"{folder}/shared"
        self.python: tuple[str, ...] = (sys.executable,)

    @property
    def nodes(self) -> tuple[ProcessNode, ...]:
        return self._nodes

    @property
    def scheduler(self) -> None:
        return None

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        return (*self.python, "-m", launcher.module)

    def state(self, index: int) -> tuple[bool, str]:  # noqa: ARG002 - all nodes are this host
        return True, ""

    def host(self, index: int) -> str:  # noqa: ARG002
        return "localhost"

    def own_name(self, index: int) -> str:  # noqa: ARG002
        return socket.gethostname()

    def address(self, index: int) -> str:  # noqa: ARG002
        return "127.0.0.1"

    def port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def rank_env(self, index: int) -> dict[str, str]:
        env = {"NCCL_HOSTID": self.nodes[index].name}
        if self._gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in self._gpus[index])
        return env


@contextlib.contextmanager
def start(options: SmokeOptions, gpus: tuple[tuple[Gpu, ...], ...] = ()) -> Iterator[ProcessCluster]:
    """Write the payload to a temporary folder and make the nodes; the folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="imagebuilder-smoke-") as name:
        folder = Path(name) / "payload"
        shutil.copytree(PAYLOAD, folder, ignore=shutil.ignore_patterns("__pycache__"))
        for tool in (folder / "bin").iterdir():
            tool.chmod(0o755)
        (folder / packing.FRAMEWORKS).write_bytes(packing.frameworks())
        (folder / "pids").mkdir()
        (folder / "shared").mkdir()
        nodes = tuple(ProcessNode(f"node{index}", folder) for index in range(options.nodes))
        yield ProcessCluster(nodes, folder, gpus)


def environment() -> dict[str, str]:
    """Return this process's variables, with its Python's folder first in PATH, as in an active venv."""
    folder = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '/usr/bin:/bin')}"}


def gpus() -> Gpus:
    """Return the GPUs that this process may use; none without a driver.

    CUDA numbers them otherwise than nvidia-smi where they differ in speed, so ranks get them by uuid.
    """
    if shutil.which("nvidia-smi") is None:
        return Gpus(lacking="nvidia-smi, which comes with NVIDIA's driver, is not on PATH")
    try:
        found = parse(process.run(("nvidia-smi", *QUERY), timeout=60).stdout)
    except process.CommandError as error:
        return Gpus(lacking=printable(str(error))[:500])
    own = tuple(dataclasses.replace(gpu, id=gpu.uuid) for gpu in found.gpus)
    return dataclasses.replace(found, gpus=visible(own, os.environ.get("CUDA_VISIBLE_DEVICES", "")))


def visible(gpus: tuple[Gpu, ...], given: str) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, with its names as their ids; all if it is empty."""
    names = [name for name in given.split(",") if name]
    if not names or not gpus:
        return gpus
    by_name = {str(gpu.index): gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in gpus}
    # A part of a GPU (MIG) is in no list of nvidia-smi.
    unknown = dataclasses.replace(gpus[0], index=0, uuid="")
    return tuple(dataclasses.replace(by_name.get(name, unknown), id=name) for name in names)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
