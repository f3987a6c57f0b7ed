"""Run commands on nodes. Every command has a time limit, and every exit code is collected."""

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
from imagebuilder.plan.rootfs import COMPAT

FOLDER = "/tmp/imagebuilder-smoke"  # noqa: S108 - inside the containers, which nobody else shares
SHARED = f"{FOLDER}/shared"
PAYLOAD = Path(__file__).parents[1] / "payload"

RuntimeKind = Literal["docker", "podman", "process", "ssh", "slurm", "job"]

# Seconds that the other ranks have to end by themselves after one has failed. Otherwise a collective whose
# peer died would wait for its whole time limit.
_GRACE = 5.0
# The node enforces the time limit; if it has not answered so many seconds later, it never will.
_PATIENCE = 20.0
OUTPUT_LIMIT = 4_000_000

# The pid is written down because only the node knows it: it is the process group to kill. If the disk is
# full, the command runs anyway, and the check `disk` reports it.
# The entrypoint does not start it, so the driver's libraries are chosen here too.
_WRAPPER = f'[ ! -r {COMPAT} ] || . {COMPAT}; echo $$ 2>/dev/null >"$0"; exec timeout -k 5 "$@"'
_TIME_UP = (124, 137)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank: its number in the job, the number of its node, and its number on that node."""

    rank: int
    node_rank: int
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """The number of nodes of a job, and of ranks on each."""

    nnodes: int
    nproc_per_node: int

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nnodes * self.nproc_per_node

    @property
    def places(self) -> tuple[Place, ...]:
        """All ranks in order: node by node, as torchrun and mpirun number them."""
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
    """How a command ended. The code is None if the node was not running or the command was abandoned.

    `rank` is None for a command that is not a rank.
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
        """The last line that is not empty, of stderr if it has one: Python prints the reason there."""
        said = _lines(self.stderr) or _lines(self.stdout)
        return said[-1][:400] if said else "it printed nothing"

    @property
    def first_words(self) -> str:
        """The first lines that are not empty: mpirun's last ones only say where to read more."""
        said = _lines(self.stderr) or _lines(self.stdout)
        return " ".join(said[:3])[:400] if said else "it printed nothing"


def wrap(command: Command, folder: str) -> list[str]:
    """Wrap a command so that the node enforces its time limit and records its pid, to kill it by."""
    mark = f"{folder}/pids/{threading.get_ident():x}-{time.monotonic_ns():x}"
    return ["sh", "-c", _WRAPPER, mark, f"{command.timeout:g}", *command.argv]


def stop_script(folder: str) -> list[str]:
    """Return the command that kills everything that was started through `wrap` and still runs."""
    pids = f"{shlex.quote(folder)}/pids"
    script = f'for f in {pids}/*; do read -r pid <"$f" && kill -TERM "$pid"; done 2>/dev/null; true'
    return ["sh", "-c", script]


def was_time_up(code: int | None, seconds: float, command: Command) -> bool:
    """Return True if a command exceeded its limit, and did not end with the same code by itself."""
    return code in _TIME_UP and seconds >= command.timeout


def _lines(text: str) -> list[str]:
    """Drop empty lines and rulers."""
    # Open MPI ends its messages with a zero byte.
    lines = (line.strip() for line in text.replace("\0", "").splitlines())
    return [line for line in lines if not set(line) <= set("-=* ")]


class Node(Protocol):
    """One node, where ranks run."""

    @property
    def name(self) -> str:
        """Its host name for the other nodes."""

    def run(self, command: Command) -> Outcome:
        """Run a command until it ends or exceeds its limit. A failure is an outcome, not an exception."""

    def stop(self) -> None:
        """Kill whatever runs on this node through `run`; called from another thread."""

    def put(self, name: str, data: bytes) -> None:
        """Copy a file into the node's smoke folder."""


class Cluster(Protocol):
    """Nodes that can reach each other; hides the differences between the runtimes."""

    kind: RuntimeKind
    folder: str
    python: tuple[str, ...]
    # The network of the nodes; empty if it is unknown.
    subnet: str
    # A folder that all nodes share and may write to; empty if none is known.
    shared: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes; where ranks meet, the first one."""

    @property
    def scheduler(self) -> Node | None:
        """What starts a command as every rank of MPI; None if mpirun does, on the first node."""

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        """Return the command that starts a framework's launcher."""

    def state(self, index: int) -> tuple[bool, str]:
        """Return whether a node runs, and the end of its log."""

    def host(self, index: int) -> str:
        """Return the name by which the other nodes reach a node."""

    def own_name(self, index: int) -> str:
        """Return the name by which a node calls itself."""

    def address(self, index: int) -> str:
        """Return a node's IP address."""

    def port(self) -> int:
        """Return a port of the first node that nothing has used yet."""

    def rank_env(self, index: int) -> dict[str, str]:
        """Return the variables that make NCCL treat a rank's node as a separate host."""


def run_together(jobs: Sequence[tuple[Node, Command]], *, grace: float | None = None) -> tuple[Outcome, ...]:
    """Run commands on nodes, all at once; returns the outcomes in the order of the commands.

    When one fails, the others are killed after some seconds of grace. Every wait has a limit, also for an
    engine that no longer answers.
    """
    done: queue.SimpleQueue[tuple[int, Outcome | BaseException]] = queue.SimpleQueue()

    def work(index: int, node: Node, command: Command) -> None:
        try:
            done.put((index, node.run(command)))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            done.put((index, error))

    # Daemon threads: a thread that hangs on a dead engine must not keep the program alive.
    for index, (node, command) in enumerate(jobs):
        threading.Thread(target=work, args=(index, node, command), daemon=True).start()
    outcomes: dict[int, Outcome] = {}
    started = time.monotonic()
    # The loop is a separate function: in CPython 3.11, a Ctrl-C on some jumps of a loop skips the `except`
    # around the loop, but never the one around a call.
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
