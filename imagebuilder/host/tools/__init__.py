"""Where apt, dpkg and mmdebstrap run: on this host, or, where it lacks them, in a container.

The commands are the same, and so are the bytes that they make.

    tools = toolbox.choose(site)
    with tools.open(folder, network=False) as desk:
        (folder / "order").write_text(...)          # as ever, on this host
        desk.send("order")                          # what commands are to read
        desk.run(["dpkg-deb", "--info", desk.folder / "x.deb"], timeout=60)
        desk.bring("layer.tar")                     # what they wrote

A command names files below `desk.folder`. On this host that is the folder itself, and `send` and `bring` do
nothing; in a container it is a copy, so an engine on another machine, or one that shares no folders of this
one (Docker Desktop), does as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagebuilder.core import process
from imagebuilder.host.site import Site

log = logging.getLogger(__name__)

NEEDED = ("apt-get", "dpkg-deb", "mmdebstrap", "unshare")
"""What a host has to have, or else a container is used."""


class Desk(Protocol):
    """A folder, and the tools that work in it."""

    @property
    def folder(self) -> Path:
        """The folder as commands name it."""

    @property
    def is_root(self) -> bool:
        """True where commands run as root, if only in a container."""

    @property
    def contained(self) -> bool:
        """True where commands see none of this host's files but what was sent."""

    def send(self, *names: str) -> None:
        """Let commands have files and folders below the folder, by their relative names; without one, all."""

    def bring(self, name: str) -> None:
        """Take back a file, or a folder with all that is in it, that commands wrote below the folder."""

    def has(self, path: Path) -> bool:
        """Tell whether the tools see a file of this name: a keyring, say."""

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        cwd: Path | None = None,
    ) -> process.Result:
        """Run a command in the folder, or in `cwd`; as `process.run` does, with the same errors."""


@dataclass(frozen=True, kw_only=True)
class Toolbox:
    """Where the tools are.

    Attributes:
        site: of the container that has them, how it is made and reaches the outside; None on this host.

    """

    site: Site | None = None

    @property
    def contained(self) -> bool:
        """True where the tools are in a container."""
        return self.site is not None

    @contextlib.contextmanager
    def open(self, folder: Path, *, network: bool, shares: Sequence[Path] = ()) -> Iterator[Desk]:
        """Set the tools up at a folder of this host; a container lives until the end, whatever ends it.

        Args:
            folder: an existing folder; what commands write stays where they ran, until `bring`.
            network: True for commands that fetch. In a container without it they may make
                namespaces, and mount in them, which making a root needs; with it they may not.
            shares: folders of this host that commands may read under their own names.

        Raises:
            EnvironmentFault: no engine answers, or it has no image with the tools and cannot get one.

        """
        if self.site is None:
            yield HostDesk(folder=folder)
            return
        from imagebuilder.host.tools.container import open_container  # late: it loads the docker SDK

        with open_container(self.site, folder, network=network, shares=shares) as desk:
            yield desk


HOST = Toolbox()
"""The tools of this host."""


def choose(site: Site) -> Toolbox:
    """Take this host's tools or a container's, as the site says; nothing is started yet."""
    where = site.tools.where
    if where == "auto":
        where = "container" if missing() else "host"
        log.info(
            "apt, dpkg and mmdebstrap run %s", "in a container" if where == "container" else "on this host"
        )
    return Toolbox(site=site) if where == "container" else HOST


def missing() -> tuple[str, ...]:
    """Name the tools that this host lacks."""
    return tuple(name for name in NEEDED if not shutil.which(name, path=_path()))


@dataclass(frozen=True, kw_only=True)
class HostDesk:
    """Tools of this host, and the folder itself."""

    folder: Path
    contained: bool = False

    @property
    def is_root(self) -> bool:
        """True where this process is root."""
        return os.geteuid() == 0

    def send(self, *names: str) -> None:
        """Do nothing: commands see the folder."""

    def bring(self, name: str) -> None:
        """Do nothing: commands wrote into the folder."""

    def has(self, path: Path) -> bool:
        """Look on this host."""
        return path.is_file()

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        cwd: Path | None = None,
    ) -> process.Result:
        """Run a command on this host."""
        variables = {"PATH": _path(), **(env or {})}
        return process.run(argv, timeout=timeout, env=variables, cwd=cwd or self.folder, check=check)


def _path() -> str:
    # chroot and others are where only root's path leads.
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
