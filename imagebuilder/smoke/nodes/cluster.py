"""Nodes, and running commands on them: every command has a time limit, every exit code is collected."""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from imagebuilder.catalog import Launcher

FOLDER = "/tmp/imagebuilder-smoke"  # noqa: S108 - inside the containers, which nobody else shares
SHARED = f"{FOLDER}/shared"
PAYLOAD = Path(__file__).parents[1] / "payload"

# How long the other ranks get to end by themselves after one has failed: a collective whose peer died
# would wait for its whole time limit.
_GRACE = 5.0
# The limit is kept where the command runs; this much later nothing is expected from there any more.
_PATIENCE = 20.0
OUTPUT_LIMIT = 4_000_000

# The pid is that of the command's process group, to end it by: nothing outside sees it. On a disk that is
# full the command runs all the same: that is for a check to say.
_WRAPPER = 'echo $$ 2>/dev/null >"$0"; exec timeout -k 5 "$@"'
_TIME_UP = (124, 137)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank is: its number in the whole job, and the node's and its own number there."""

    rank: int
    node_rank: int
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """How many nodes a job has, and how many ranks on each."""

    nnodes: int
    nproc_per_node: int

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.nnodes * self.nproc_per_node

    @property
    def places(self) -> tuple[Place, ...]:
        """Where each rank is, in the order of ranks: node by node, as torchrun and mpirun number them."""
        return tuple(
            Place(
                rank=node_rank * self.nproc_per_node + local_rank, node_rank=node_rank, local_rank=local_rank
            )
            for node_rank in range(self.nnodes)
            for local_rank in range(self.nproc_per_node)
        )

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """An argument list, its variables on top of the node's own, and its time limit in seconds."""

    argv: tuple[str, ...]
    timeout: float
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shlex.join((*(f"{name}={value}" for name, value in self.env.items()), *self.argv))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended; the code is None where there is none: no node to run on, or given up.

    Node and rank are those that it was started as; no rank where it was none.
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    node: str = ""
    rank: int | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    @property
    def last_words(self) -> str:
        """The last line that says something, of the error stream if it has one: where Python says why."""
        said = _lines(self.stderr) or _lines(self.stdout)
        return said[-1][:400] if said else "it said nothing"

    @property
    def first_words(self) -> str:
        """The first lines that say something: mpirun's last ones only say where to read more."""
        said = _lines(self.stderr) or _lines(self.stdout)
        return " ".join(said[:3])[:400] if said else "it said nothing"


def wrap(command: Command, folder: str) -> list[str]:
    """Make the argument list that keeps a command's time limit where it runs, and leaves a way to end it."""
    mark = f"{folder}/pids/{threading.get_ident():x}-{time.monotonic_ns():x}"
    return ["sh", "-c", _WRAPPER, mark, f"{command.timeout:g}", *command.argv]


def stop_script(folder: str) -> list[str]:
    """Make the command that ends all that was started through `wrap` and still runs."""
    pids = f"{shlex.quote(folder)}/pids"
    script = f'for f in {pids}/*; do read -r pid <"$f" && kill -TERM "$pid"; done 2>/dev/null; true'
    return ["sh", "-c", script]


def was_time_up(code: int | None, seconds: float, command: Command) -> bool:
    """Tell a command that outran its limit from one that ended with the same code by itself."""
    return code in _TIME_UP and seconds >= command.timeout


def _lines(text: str) -> list[str]:
    """Keep the lines that are more than a ruler."""
    # Open MPI ends its messages with a zero byte.
    lines = (line.strip() for line in text.replace("\0", "").splitlines())
    return [line for line in lines if not set(line) <= set("-=* ")]


class Node(Protocol):
    """One place where a rank runs."""

    @property
    def name(self) -> str:
        """Host name for the other nodes."""

    def run(self, command: Command) -> Outcome:
        """Run a command to its end or its limit; a failure is an outcome, not an exception."""

    def stop(self) -> None:
        """End whatever runs on this node through `run`; called from another thread."""

    def put(self, name: str, data: bytes) -> None:
        """Copy a file into the node's smoke folder."""


class Cluster(Protocol):
    """Nodes that can reach each other, and what differs between the runtimes."""

    kind: Literal["docker", "podman", "process"]
    folder: str
    python: tuple[str, ...]
    subnet: str
    # A folder that all nodes see and may write to.
    shared: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes; where ranks meet, the first one."""

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        """Make the command that starts a framework's launcher."""

    def state(self, index: int) -> tuple[bool, str]:
        """Say whether a node runs, and give the last of its log."""

    def host(self, index: int) -> str:
        """Name by which the other nodes reach a node."""

    def address(self, index: int) -> str:
        """Its IP address."""

    def port(self) -> int:
        """Name a port of the first node that nothing has used yet."""

    def rank_env(self, index: int) -> dict[str, str]:
        """Variables that a rank needs here to be taken for a host of its own."""


def run_together(jobs: Sequence[tuple[Node, Command]], *, grace: float | None = None) -> tuple[Outcome, ...]:
    """Run commands on nodes, all at once, and collect every outcome, in the order given.

    When one fails, the others are ended after some seconds of grace. Nothing is waited for without end, not
    even an engine that no longer answers.
    """
    done: queue.SimpleQueue[tuple[int, Outcome | BaseException]] = queue.SimpleQueue()

    def work(index: int, node: Node, command: Command) -> None:
        try:
            done.put((index, node.run(command)))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            done.put((index, error))

    # Daemon threads: one that hangs on a dead engine must not keep the program from ending.
    for index, (node, command) in enumerate(jobs):
        threading.Thread(target=work, args=(index, node, command), daemon=True).start()
    outcomes: dict[int, Outcome] = {}
    started = time.monotonic()
    # The loop is a function of its own: CPython 3.11 takes a Ctrl-C on some jumps of a loop past the `except`
    # that stands around it, and never past the one around a call.
    try:
        _collect(jobs, done, outcomes, _GRACE if grace is None else grace)
    except BaseException:
        _stop(jobs, outcomes)
        raise
    elapsed = time.monotonic() - started
    lost = Outcome(code=None, stdout="", stderr="the engine gave no answer", seconds=elapsed, timed_out=True)
    return tuple(outcomes.get(index, lost) for index in range(len(jobs)))


def _collect(
    jobs: Sequence[tuple[Node, Command]],
    done: queue.SimpleQueue[tuple[int, Outcome | BaseException]],
    outcomes: dict[int, Outcome],
    grace: float,
) -> None:
    give_up = time.monotonic() + max(command.timeout for _, command in jobs) + _PATIENCE
    stop_at: float | None = None
    while len(outcomes) < len(jobs) and time.monotonic() < give_up:
        if stop_at is not None and time.monotonic() >= stop_at:
            _stop(jobs, outcomes)
            stop_at = None
        try:
            index, result = done.get(timeout=0.2)
        except queue.Empty:
            continue
        outcomes[index] = outcome = _require_outcome(result)
        if not outcome.ok and stop_at is None:
            stop_at = time.monotonic() + grace


def _require_outcome(result: Outcome | BaseException) -> Outcome:
    if isinstance(result, BaseException):
        raise result
    return result


def _stop(jobs: Sequence[tuple[Node, Command]], outcomes: Mapping[int, Outcome]) -> None:
    for index, (node, _) in enumerate(jobs):
        if index not in outcomes:
            node.stop()
