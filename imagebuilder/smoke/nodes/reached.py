"""Nodes that run already, reached by another program: ssh, or Slurm's srun. Nothing is left on them."""

from __future__ import annotations

import abc
import base64
import contextlib
import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Generic, TypeVar

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
    Node,
    Outcome,
    RuntimeKind,
    stop_script,
    was_time_up,
    wrap,
)
from imagebuilder.smoke.nodes.discovery import NodeFacts, discover

log = logging.getLogger(__name__)

# Seconds to reach the node, on top of the command's own limit, which the node enforces.
SPARE = 30.0
_SECONDS = 60.0
_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
_ADDRESS = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"


class ReachedNode(abc.ABC):
    """A host that another program reaches by its name."""

    # The exit code with which that program says that it did not reach the host.
    unreached: int | None = None

    def __init__(self, name: str, folder: str) -> None:
        """Take the name, and the folder that the test makes there."""
        self.name = name
        self._folder = folder

    @abc.abstractmethod
    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs a command there, in the image."""

    @property
    @abc.abstractmethod
    def hint(self) -> str:
        """What must work from here for the node to be reached."""

    def outside(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs a command there on the host, which may be the same."""
        return self.words(argv)

    def cleaned(self, stderr: str) -> str:
        """Drop what the program itself adds to a command's messages."""
        return stderr

    def run(self, command: Command) -> Outcome:
        """Run a command there, in the environment that the program gives."""
        variables = [f"{name}={value}" for name, value in command.env.items()]
        return self._run(self.words(["env", *variables, *wrap(command, self._folder)]), command)

    def stop(self) -> None:
        """Kill what `run` started and still runs."""
        self._run(self.outside(stop_script(self._folder)), Command(argv=(), timeout=SPARE))

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
            outcome = self._run(self.outside(argv), Command(argv=(), timeout=SPARE))
            if not outcome.ok:
                log.warning("%s: %s may be left there: %s", self.name, self._folder, outcome.last_words)

    def _require(self, script: str, data: bytes, doing: str) -> None:
        text = base64.b64encode(data).decode()
        outcome = self._run(
            self.outside(["sh", "-c", script]), Command(argv=(), timeout=_SECONDS), stdin=text
        )
        if not outcome.ok:
            said = printable(outcome.last_words)
            raise EnvironmentFault(f"{doing} failed: {said}", where=self.name, hint=self.hint)

    def _run(self, words: Sequence[str], command: Command, stdin: str | None = None) -> Outcome:
        started = time.monotonic()
        try:
            result = process.run(words, timeout=command.timeout + SPARE, stdin=stdin, check=False)
        except process.CommandError as error:
            result = error.result
        seconds = time.monotonic() - started
        code = None if result.code == self.unreached or result.code < 0 else result.code
        return Outcome(
            code=code,
            stdout=result.stdout[-OUTPUT_LIMIT:],
            stderr=self.cleaned(result.stderr[-OUTPUT_LIMIT:]),
            seconds=seconds,
            timed_out=was_time_up(code, seconds, command),
        )


_AnyNode = TypeVar("_AnyNode", bound=ReachedNode)


class ReachedCluster(Generic[_AnyNode]):
    """Such hosts; each Python is the one found on the first."""

    kind: RuntimeKind = "ssh"
    # The hosts' networks are unknown: any address but the loopback counts.
    subnet = ""
    # Hosts may share a folder, but which one is unknown.
    shared = ""

    def __init__(self, nodes: tuple[_AnyNode, ...], folder: str) -> None:
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
                f"the hosts call themselves {', '.join(names)}: two names mean one host",
                where=f"--runtime {self.kind}",
            )

    @property
    def nodes(self) -> tuple[_AnyNode, ...]:
        return self._nodes

    @property
    def scheduler(self) -> Node | None:
        return None

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        return (*self.python, "-m", launcher.module)

    def state(self, index: int) -> tuple[bool, str]:
        outcome = self._nodes[index].run(Command(argv=("true",), timeout=SPARE))
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


def folder(run_id: str) -> str:
    """Return the folder of one run, which no other run has."""
    return f"{FOLDER}-{run_id}"


@contextlib.contextmanager
def begun(nodes: Sequence[ReachedNode]) -> Iterator[None]:
    """Copy the scripts to the nodes, and remove them at the end.

    Raises:
        EnvironmentFault: a node cannot be reached.

    """
    items = [
        packing.Item(path=str(PurePosixPath(item.path).relative_to(FOLDER)), mode=item.mode, data=item.data)
        for item in packing.payload()
        if item.path != FOLDER
    ]
    archive = packing.pack(items, (0, 0))
    ready: list[ReachedNode] = []
    try:
        for node in nodes:
            node.begin(archive)
            ready.append(node)
        yield
    finally:
        for node in ready:
            node.end()
