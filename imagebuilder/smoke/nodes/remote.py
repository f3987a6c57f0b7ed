"""Nodes that run already, reached by this user's own ssh. Nothing is left on them.

ssh's own settings hold: known hosts, keys, jump hosts. A host whose key is unknown is an error.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from imagebuilder.catalog import Launcher
from imagebuilder.core import process
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.smoke import gpus
from imagebuilder.smoke.gpus import Gpus
from imagebuilder.smoke.nodes import packing
from imagebuilder.smoke.nodes.cluster import (
    FOLDER,
    OUTPUT_LIMIT,
    Command,
    Outcome,
    RuntimeKind,
    stop_script,
    was_time_up,
    wrap,
)
from imagebuilder.smoke.nodes.discovery import NodeFacts, discover

log = logging.getLogger(__name__)

_HOST = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_.-]{0,31}@)?([A-Za-z0-9][A-Za-z0-9.-]{0,252})")
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o", "ForwardAgent=no"),
)
# Seconds for the connection, on top of the command's own limit, which the node enforces.
_SPARE = 30.0
_SECONDS = 60.0
# ssh's own exit code if it cannot reach the host.
_UNREACHED = 255
_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
_ADDRESS = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"


class RemoteNode:
    """A host that ssh reaches by a name: `host` or `user@host`."""

    def __init__(self, target: str, folder: str) -> None:
        """Take the name, and the folder that the test makes there."""
        self.name = target.rpartition("@")[2]
        self._target = target
        self._folder = folder

    def run(self, command: Command) -> Outcome:
        """Run a command there, in the environment that ssh gives."""
        variables = [f"{name}={value}" for name, value in command.env.items()]
        return self._run(["env", *variables, *wrap(command, self._folder)], command)

    def stop(self) -> None:
        """Kill what `run` started and still runs."""
        self._run(stop_script(self._folder), Command(argv=(), timeout=_SPARE))

    def put(self, name: str, data: bytes) -> None:
        """Write a file into the test's folder.

        Raises:
            EnvironmentFault: the host cannot be reached, or the file cannot be written.

        """
        path = shlex.quote(f"{self._folder}/{name}")
        self._require(f"base64 -d >{path}", data, f"copying {name}")

    def begin(self, archive: bytes) -> None:
        """Make the test's folder, which must not exist, and unpack the scripts into it.

        Raises:
            EnvironmentFault: the host cannot be reached, or the folder cannot be made.

        """
        folder = shlex.quote(self._folder)
        unpack = f"base64 -d | tar -xf - -C {folder} || {{ rm -rf {folder}; exit 1; }}"
        self._require(f"umask 077 && mkdir {folder} && {{ {unpack}; }}", archive, "beginning")

    def end(self) -> None:
        """Kill what still runs, and remove the folder."""
        remove = ["sh", "-c", f"rm -rf {shlex.quote(self._folder)}"]
        for argv in (stop_script(self._folder), remove):
            outcome = self._run(argv, Command(argv=(), timeout=_SPARE))
            if not outcome.ok:
                log.warning("%s: %s may be left there: %s", self.name, self._folder, outcome.last_words)

    def _require(self, script: str, data: bytes, doing: str) -> None:
        text = base64.b64encode(data).decode()
        outcome = self._run(["sh", "-c", script], Command(argv=(), timeout=_SECONDS), text)
        if not outcome.ok:
            raise EnvironmentFault(
                f"{doing} failed: {printable(outcome.last_words)}",
                where=self.name,
                hint=f"`ssh -o BatchMode=yes {self._target} true` must work from here, without a question",
            )

    def _run(self, argv: Sequence[str], command: Command, stdin: str | None = None) -> Outcome:
        started = time.monotonic()
        words = ("ssh", *_OPTIONS, "--", self._target, shlex.join(argv))
        try:
            result = process.run(words, timeout=command.timeout + _SPARE, stdin=stdin, check=False)
        except process.CommandError as error:
            result = error.result
        seconds = time.monotonic() - started
        code = None if result.code == _UNREACHED or result.code < 0 else result.code
        return Outcome(
            code=code,
            stdout=result.stdout[-OUTPUT_LIMIT:],
            stderr=result.stderr[-OUTPUT_LIMIT:],
            seconds=seconds,
            timed_out=was_time_up(code, seconds, command),
        )


class RemoteCluster:
    """Such hosts; each Python is the one found on the first."""

    kind: RuntimeKind = "ssh"
    # The hosts' networks are unknown: any address but the loopback counts.
    subnet = ""
    # Hosts may share a folder, but which one is unknown.
    shared = ""

    def __init__(self, nodes: tuple[RemoteNode, ...], folder: str) -> None:
        """Take hosts on which the folder exists, and ask each what it has.

        Raises:
            InputError: one of them has no shell or Python, or two names mean one host.

        """
        self._nodes = nodes
        self.folder = folder
        self.facts: tuple[NodeFacts, ...] = tuple(discover(node, folder) for node in nodes)
        self.python: tuple[str, ...] = (self.facts[0].python,)
        names = [facts.host for facts in self.facts]
        if len(set(names)) < len(names):
            raise InputError(
                f"the hosts call themselves {', '.join(names)}: two names mean one host", where="--hosts"
            )

    @property
    def nodes(self) -> tuple[RemoteNode, ...]:
        return self._nodes

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        return (*self.python, "-m", launcher.module)

    def state(self, index: int) -> tuple[bool, str]:
        outcome = self._nodes[index].run(Command(argv=("true",), timeout=_SPARE))
        return outcome.ok, outcome.last_words

    def host(self, index: int) -> str:
        return self._nodes[index].name

    def own_name(self, index: int) -> str:
        return self.facts[index].host

    def address(self, index: int) -> str:
        return self._said(1 if index == 0 else 0, _ADDRESS, self.host(index))

    def port(self) -> int:
        text = self._said(0, _FREE_PORT)
        if not (text.isascii() and text.isdigit()):
            raise EnvironmentFault(f"`{printable(text[:100])}` is not a port", where=self._nodes[0].name)
        return int(text)

    def rank_env(self, index: int) -> dict[str, str]:  # noqa: ARG002 - each host is one for NCCL
        return {}

    def gpus(self) -> tuple[Gpus, ...]:
        """Return each host's GPUs."""
        command = Command(argv=("nvidia-smi", *gpus.QUERY), timeout=_SECONDS)
        outcomes = [node.run(command) for node in self._nodes]
        return tuple(gpus.parse(outcome.stdout if outcome.ok else "") for outcome in outcomes)

    def _said(self, index: int, script: str, *words: str) -> str:
        outcome = self._nodes[index].run(Command(argv=(*self.python, "-c", script, *words), timeout=_SECONDS))
        if not outcome.ok:
            raise EnvironmentFault(printable(outcome.last_words), where=self._nodes[index].name)
        return outcome.stdout.strip()


@contextlib.contextmanager
def start(hosts: Sequence[str], run_id: str) -> Iterator[RemoteCluster]:
    """Copy the scripts to the hosts, and remove them at the end.

    Raises:
        EnvironmentFault: a host cannot be reached.
        InputError: a host cannot be used.

    """
    folder = f"{FOLDER}-{run_id}"
    items = [
        packing.Item(path=str(PurePosixPath(item.path).relative_to(FOLDER)), mode=item.mode, data=item.data)
        for item in packing.payload()
        if item.path != FOLDER
    ]
    archive = packing.pack(items, (0, 0))
    nodes = tuple(RemoteNode(target, folder) for target in hosts)
    begun: list[RemoteNode] = []
    try:
        for node in nodes:
            node.begin(archive)
            begun.append(node)
        yield RemoteCluster(nodes, folder)
    finally:
        for node in begun:
            node.end()


def checked(text: str) -> tuple[str, ...]:
    """Read a list of hosts, separated by commas.

    >>> checked("gpu1,me@gpu2")
    ('gpu1', 'me@gpu2')

    Raises:
        InputError: one is not a host's name, or one is there twice.

    """
    hosts = tuple(text.split(","))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InputError(
                f"`{printable(host)}` is not a host",
                where="--hosts",
                hint="write `--hosts a,b` or `--hosts user@a,user@b`; ports and keys go into ~/.ssh/config",
            )
    if len(set(hosts)) < len(hosts):
        raise InputError("a host is there twice", where="--hosts")
    return hosts
