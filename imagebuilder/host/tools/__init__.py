"""Run apt, dpkg and mmdebstrap: on this host, or in a container where the host lacks them.

The commands are the same in both places, and so are the bytes that they make.

    tools = choose_tools(site)
    with tools.open(folder, network=False) as sandbox:
        (folder / "order").write_text(...)          # written on this host
        sandbox.copy_in("order")                    # commands can read it now
        sandbox.run(["dpkg-deb", "--info", sandbox.folder / "x.deb"], timeout=60)
        sandbox.copy_out("layer.tar")               # this host can read it now

A command names files below `sandbox.folder`. On this host that is the folder itself, and `copy_in` and
`copy_out` do nothing. In a container it is a copy, so the engine may run on another machine, or share no
folders with this one (Docker Desktop).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from imagebuilder.core import process
from imagebuilder.host.site import Site

log = logging.getLogger(__name__)

NEEDED = ("apt-get", "dpkg-deb", "mmdebstrap", "unshare")
"""A host that lacks one of these uses a container."""


class Sandbox(Protocol):
    """A folder, and a place to run commands that work in it."""

    @property
    def folder(self) -> Path:
        """The folder under the name that commands use."""

    @property
    def is_root(self) -> bool:
        """True where commands run as root, of this host or of a container."""

    @property
    def contained(self) -> bool:
        """True where commands see only the files that were copied in."""

    def copy_in(self, *names: str) -> None:
        """Make files and folders visible to commands. Names are relative to the folder; without any, all."""

    def copy_out(self, name: str) -> None:
        """Make a file or a whole folder that commands wrote below the folder visible to this host."""

    def has(self, path: Path) -> bool:
        """Return True if a file of this name, such as a keyring, exists where commands run."""

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        cwd: Path | None = None,
    ) -> process.Result:
        """Run a command in the folder, or in `cwd`. Arguments and errors are those of `process.run`."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Where commands run.

    Attributes:
        site: the settings for the container: its image, mirrors and proxies; None on this host.
        heard: called with each line that a command prints, while it runs.

    """

    site: Site | None = None
    heard: Callable[[str], None] | None = None

    @property
    def contained(self) -> bool:
        """True where commands run in a container."""
        return self.site is not None

    @contextlib.contextmanager
    def open(self, folder: Path, *, network: bool, shares: Sequence[Path] = ()) -> Iterator[Sandbox]:
        """Yield a sandbox for a folder of this host. A container is removed at the end, also after an error.

        Args:
            folder: an existing folder. In a container, `copy_out` fetches what commands wrote.
            network: True for commands that fetch. Only a container without a network lets commands create
                namespaces and mount in them, which installing packages needs.
            shares: folders of this host that commands may read, under the same names.

        Raises:
            EnvironmentFault: no engine answers, or the image with the tools can be neither found nor made.

        """
        if self.site is None:
            yield HostSandbox(folder=folder, heard=self.heard)
            return
        from imagebuilder.host.tools.container import open_container  # late: it loads the docker SDK

        with open_container(self.site, folder, network=network, shares=shares) as sandbox:
            yield replace(sandbox, heard=self.heard)


HOST = Tools()
"""The tools of this host."""


def choose_tools(site: Site) -> Tools:
    """Choose this host or a container, as the site file says. Starts nothing."""
    where = site.tools.where
    if where == "auto":
        where = "container" if missing() else "host"
        log.info(
            "apt, dpkg and mmdebstrap run %s", "in a container" if where == "container" else "on this host"
        )
    return Tools(site=site) if where == "container" else HOST


def missing() -> tuple[str, ...]:
    """Return the names of the tools that this host lacks."""
    return tuple(name for name in NEEDED if not shutil.which(name, path=_path()))


@dataclass(frozen=True, kw_only=True)
class HostSandbox:
    """Runs commands on this host, in the folder itself."""

    folder: Path
    contained: bool = False
    heard: Callable[[str], None] | None = None

    @property
    def is_root(self) -> bool:
        """True where this process is root."""
        return os.geteuid() == 0

    def copy_in(self, *names: str) -> None:
        """Do nothing: commands work in the folder itself."""

    def copy_out(self, name: str) -> None:
        """Do nothing: commands work in the folder itself."""

    def has(self, path: Path) -> bool:
        """Return True if this host has the file."""
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
        place = cwd or self.folder
        return process.run(argv, timeout=timeout, env=variables, cwd=place, check=check, heard=self.heard)


def _path() -> str:
    # chroot and others are in folders that only root's PATH names.
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
