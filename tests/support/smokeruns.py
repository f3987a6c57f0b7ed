"""Smoke tests as processes of their own, to be killed, and what they leave in the engine."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import labels as label_names
from imagebuilder.core import process
from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.support import programs

PROGRAM = Path(sys.executable).parent / "imagebuilder"


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a process has in the engine, by name; an unnamed volume belongs to a container."""

    containers: tuple[str, ...]
    networks: tuple[str, ...]
    volumes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.containers or self.networks or self.volumes)


def start(reference: str, store: Store) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a smoke test of an image, to be killed at the end at the latest."""
    command: list[str | Path] = [PROGRAM, "smoke-test", reference, "--mode", "cpu", "--store", store.root]
    return programs.running(command)


def run_next(reference: str, store: Store) -> None:
    """Run another one to its end; of all checks the quickest, since what counts is that it starts."""
    command: list[str | Path] = [PROGRAM, "smoke-test", reference, "--mode", "cpu", "--check", "names"]
    result = process.run([*command, "--store", store.root], timeout=300, check=False)
    # Not a proof, for most checks were not asked for.
    assert result.code == 1, result.stderr
    assert "passed   names" in result.stderr


def left(engine: Engine, pid: int, volumes: tuple[str, ...] = ()) -> Left:
    """Look for what a process started, and for volumes that it was known to have."""
    containers = [
        container
        for container in engine.client.containers.list(
            all=True, filters={"label": label_names.RUN}, ignore_removed=True
        )
        if _is_of(container.labels, pid)
    ]
    networks = [
        network
        for network in engine.client.networks.list(filters={"label": label_names.RUN})
        if _is_of(network.attrs.get("Labels") or {}, pid)
    ]
    known = {volume.name for volume in engine.client.volumes.list()} & set(volumes)
    mounted = {
        mount["Name"]
        for container in containers
        for mount in container.attrs["Mounts"]
        if mount["Type"] == "volume"
    }
    return Left(
        containers=tuple(sorted(str(container.name) for container in containers)),
        networks=tuple(sorted(str(network.name) for network in networks)),
        volumes=tuple(sorted(known | mounted)),
    )


def await_nodes(engine: Engine, pid: int, seconds: float = 60) -> None:
    """Wait until a process has something in the engine."""
    until = time.monotonic() + seconds
    while not left(engine, pid).containers:
        assert time.monotonic() < until, "the smoke test started no container"
        time.sleep(0.1)


def _is_of(labels: dict[str, str], pid: int) -> bool:
    return f":{pid}-" in labels.get(label_names.RUN_OWNER, "")
