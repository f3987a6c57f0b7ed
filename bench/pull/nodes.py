"""A node that pulls: an engine with nothing in it, of one of four kinds."""

from __future__ import annotations

import resource
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from bench.sidebyside.engine import HOUR, Engine
from imagebuilder.core import process

_PROCESSES = 32_768


class Node(ABC):
    """An engine in a folder of its own, which can be emptied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def renew(self) -> None:
        """Start it, with nothing in it."""

    @abstractmethod
    def pull(self, image: str) -> None: ...

    @abstractmethod
    def python(self, image: str, code: str) -> None:
        """Run code in a fresh container."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and delete all that it has."""

    def files(self) -> Path:
        """Return the folder below which the engine has the unpacked files."""
        return self.folder


class Docker(Node):
    """Docker, with either image store."""

    classic = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._engine = Engine(folder, classic=self.classic)

    def renew(self) -> None:
        self._engine.renew()

    def pull(self, image: str) -> None:
        self._engine.docker("pull", "--quiet", image)

    def python(self, image: str, code: str) -> None:
        words = ("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", code)
        self._engine.docker(*words)

    def stop(self) -> None:
        self._engine.stop()


class Classic(Docker):
    classic = True


class Podman(Node):
    """Podman, by its command; `partial`: it may fetch single files of layers that list theirs."""

    partial = False

    def renew(self) -> None:
        self.stop()
        self.folder.mkdir(parents=True)
        wanted = str(self.partial).lower()
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/root"\n'
            f'runroot = "{self.folder}/run"\n'
            f'[storage.options]\npull_options = {{enable_partial_images = "{wanted}", '
            'use_hard_links = "false", ostree_repos = ""}\n'
        )
        limits = [resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
        files, processes = (value if 0 <= value < _PROCESSES else _PROCESSES for value in limits)
        (self.folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
        )

    def pull(self, image: str) -> None:
        self._podman("pull", "--quiet", "--tls-verify=false", image)

    def python(self, image: str, code: str) -> None:
        self._podman("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", code)

    def stop(self) -> None:
        # Podman mounts it onto itself.
        process.run(["umount", self.folder / "root" / "overlay"], timeout=60, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _podman(self, *words: str) -> None:
        places = {"CONTAINERS_STORAGE_CONF": "storage.conf", "CONTAINERS_CONF": "containers.conf"}
        environment = {name: str(self.folder / file) for name, file in places.items()}
        process.run(["podman", *words], timeout=HOUR, env=environment)


class PartialPodman(Podman):
    partial = True


NODES: dict[str, type[Node]] = {
    "containerd": Docker,
    "classic": Classic,
    "podman": Podman,
    "podman-partial": PartialPodman,
}
