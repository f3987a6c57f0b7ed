"""Container engines of the bench's own: each with its data in one folder, so that cold means empty.

An engine that serves others keeps a build cache that must not be thrown away, and that makes a cold build
warm. So every side that needs an engine gets one: `dockerd` with the containerd image store and no firewall
rules (builds use this host's network, containers none), ended and deleted with its folder. It has a bridge of
its own, unused: told to have none, `dockerd` removes `docker0`, the network of this host's engine.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.errors import EnvironmentFault

HOUR = 3600.0
_STARTING = 60.0
_numbers = itertools.cycle(range(50))


class Engine:
    """A `dockerd` that can be made again.

    Attributes:
        folder: holds its data; with `classic` in Docker's own image store, else in containerd's.
        host: what DOCKER_HOST leads to it.

    """

    def __init__(self, folder: Path, *, classic: bool = False) -> None:
        self.folder = folder
        self._classic = classic
        # Paths of sockets are short: not in the folder.
        self._run = Path(tempfile.mkdtemp(prefix="ib-bench-", dir="/run"))
        self.host = f"unix://{self._run}/docker.sock"
        number = next(_numbers)
        self._bridge, self._address = f"ib-bench{number}", f"172.30.{200 + number}.1/24"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def renew(self) -> None:
        """Start it, with nothing in it."""
        self.stop()
        self._run.mkdir(exist_ok=True)
        self.folder.mkdir(parents=True)
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", self._address, "dev", self._bridge)
        config = {
            "features": {"containerd-snapshotter": not self._classic},
            "data-root": str(self.folder / "data"),
            "exec-root": str(self._run / "exec"),
            "pidfile": str(self._run / "docker.pid"),
            "hosts": [self.host],
            "bridge": self._bridge,
            "iptables": False,
            "ip6tables": False,
        }
        (self.folder / "daemon.json").write_text(json.dumps(config))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["dockerd", "--config-file", self.folder / "daemon.json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name != "DOCKER_HOST"},
                start_new_session=True,
            )
        deadline = time.monotonic() + _STARTING
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(errors="replace")[-1500:]
                raise EnvironmentFault(f"dockerd does not start here (the bench needs root):\n{tail}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, and delete all that it has."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_STARTING)
            self._process = None
        # Also what a run that was killed has left.
        process.run(["ip", "link", "delete", self._bridge], timeout=30, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._run, ignore_errors=True)

    def docker(self, *words: str | Path, timeout: float = HOUR) -> str:
        """Run `docker` against it; returns what it printed."""
        return process.run(["docker", *words], timeout=timeout, env={"DOCKER_HOST": self.host}).stdout

    def _answers(self) -> bool:
        asked = ["docker", "version", "--format", "{{.Server.Version}}"]
        return process.run(asked, timeout=30, env={"DOCKER_HOST": self.host}, check=False).code == 0


def _ip(*words: str) -> None:
    process.run(["ip", *words], timeout=30)
