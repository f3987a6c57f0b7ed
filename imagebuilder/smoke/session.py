"""What a check works with: the nodes, the target, and the transcript of what it ran; and what a check is."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from imagebuilder.errors import ImagebuilderError
from imagebuilder.smoke.cluster import Cluster, Command, Node, Outcome, run_together
from imagebuilder.smoke.report import Finding, Mode, Step
from imagebuilder.smoke.target import Options, Target

# Payload scripts print one such line a rank; see payload/common.py.
MARKER = "@imagebuilder-smoke "
_SHOWN = 4000
_TERMINATED = 128 + signal.SIGTERM
# What gloo, NCCL and torch's store say when another rank is gone, or does not answer.
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "remote process exited",
    "Watchdog caught collective operation timeout",
)


class CheckFailed(ImagebuilderError):
    """A check's criterion does not hold; the problems' `where` is the node."""

    exit_code = 1

    @classmethod
    def because(cls, *findings: Finding, evidence: Mapping[str, Any] | None = None) -> CheckFailed:
        """Fail for several reasons at once, and tell what was seen."""
        error = cls(findings[0].message)
        error.findings = findings
        error.evidence = evidence or {}
        return error

    def __init__(self, message: str, *, node: str = "", remedy: str = "") -> None:
        """Fail for one reason: what is wrong, on which node, and what to do about it."""
        super().__init__(message, where=node, hint=remedy)
        self.findings: tuple[Finding, ...] = (Finding(node=node, message=message, remedy=remedy),)
        self.evidence: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What a check that holds tells: one line for people, and what it saw."""

    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question to the image.

    Attributes:
        name: one word, for tables and `Options.only`.
        title: what is run.
        criterion: what exactly has to hold.
        run: asks; returns what it saw, or raises `CheckFailed`.
        skip: a reason why it cannot be asked here, or nothing.
        required: whether the image is unproven without it.
        exchanges: a pass means that the nodes computed something together.

    """

    name: str
    title: str
    criterion: str
    run: Callable[[Session], Passed]
    skip: Callable[[Session], str] = lambda _session: ""
    required: Callable[[Session], bool] = lambda _session: True
    exchanges: bool = False


class Session:
    """One smoke test while it runs."""

    def __init__(  # noqa: PLR0917 - one call, beside the start of the nodes
        self,
        cluster: Cluster,
        target: Target,
        options: Options,
        mode: Mode,
        environment: Mapping[str, str],
        digits: Callable[[], Path],
    ) -> None:
        """Take the running nodes; `environment` is the image's, `digits` fetches the data for training."""
        self.cluster = cluster
        self.target = target
        self.options = options
        self.mode: Mode = mode
        # Ranks have to say it: what is left of another run cannot pass for an answer.
        self.nonce = secrets.token_hex(8)
        self.environment = environment
        self.steps: list[Step] = []
        self._digits = digits

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.cluster.nodes

    @property
    def size(self) -> int:
        return len(self.cluster.nodes)

    @property
    def device(self) -> str:
        return "cpu" if self.mode == "cpu" else "cuda"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the first node has: `torch`, `mpi4py`, `mpirun`; empty where its Python does not start."""
        outcome = self.run(0, self.script("facts.py"), timeout=60)
        found = self.said(outcome)
        return found[0] if outcome.ok and found else {}

    @property
    def has_torch(self) -> bool:
        return bool(self.facts.get("torch"))

    def script(self, name: str, *arguments: str | int) -> tuple[str, ...]:
        """Make the command that runs a payload script, with this run's nonce."""
        words = (f"{self.cluster.folder}/{name}", "--nonce", self.nonce, *map(str, arguments))
        return (*self.cluster.python, *words)

    def run(
        self, index: int, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run a command on one node and note it down."""
        return self._run([(index, self._command(argv, timeout, env))])[0]

    def run_everywhere(
        self,
        argv: Callable[[int], Sequence[str]],
        *,
        timeout: float,
        env: Callable[[int], Mapping[str, str]] | None = None,
    ) -> tuple[Outcome, ...]:
        """Run a command on every node at once and note it down; the functions get the node's index."""
        jobs = [
            (index, self._command(argv(index), timeout, env(index) if env else None))
            for index in range(self.size)
        ]
        return self._run(jobs)

    def rank_env(self, index: int) -> dict[str, str]:
        """Give the variables of a rank on a node: what it computes and talks with."""
        env = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **self.cluster.rank_env(index)}
        if self.mode != "cpu":
            env["NCCL_DEBUG"] = "INFO"
        if self.mode == "one-gpu-shared":
            # One GPU cannot be a peer of itself: NCCL has to take both ranks for different hosts, and to use
            # what works between any two hosts. See docs/explanation/smoke-test.md.
            env |= {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
        return env

    def peer(self, index: int) -> str:
        """Name a node that a node has to reach."""
        return self.cluster.host(1 if index == 0 else 0)

    def ssh(self, host: str, *argv: str) -> tuple[str, ...]:
        """Make the command that runs another one through ssh, with nothing but a host's name."""
        return ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", host, *argv)

    def mpirun(self, hosts: Sequence[str], *argv: str) -> tuple[str, ...]:
        """Make the command that starts one rank on each host; what else it needs, the image has to set."""
        return ("mpirun", "-np", str(len(hosts)), "--host", ",".join(f"{host}:1" for host in hosts), *argv)

    def launch(self, name: str, *arguments: str | int, timeout: float) -> tuple[Mapping[str, Any], ...]:
        """Run a payload script as one rank a node, told by variables who it is; what each rank found.

        Raises:
            CheckFailed: a rank failed, hung, or did not answer for this run.

        """
        master = {"MASTER_ADDR": self.cluster.host(0), "MASTER_PORT": str(self.cluster.port())}

        def env(index: int) -> Mapping[str, str]:
            who = {"RANK": str(index), "WORLD_SIZE": str(self.size), "LOCAL_RANK": "0"}
            return {**self.rank_env(index), **master, **who}

        def argv(index: int) -> Sequence[str]:
            return self.script(name, "--device", self.device, "--peer", self.peer(index), *arguments)

        return self.ranks(self.run_everywhere(argv, timeout=timeout, env=env))

    def ranks(self, outcomes: Sequence[Outcome]) -> tuple[Mapping[str, Any], ...]:
        """Take what the ranks found, one a node, sorted by rank.

        Raises:
            CheckFailed: a rank failed, hung, or did not answer for this run.

        """
        self.require_ok(outcomes)
        found = [said for outcome in outcomes for said in self.said(outcome)]
        ranks = sorted(int(said.get("rank", -1)) for said in found)
        sizes = {said.get("size") for said in found}
        if ranks != list(range(self.size)) or sizes != {self.size}:
            raise CheckFailed(
                f"{self.size} ranks were started; who answered took itself for rank "
                + ", ".join(f"{said.get('rank')} of {said.get('size')}" for said in found),
                remedy="ranks take themselves for jobs of their own where the launcher and the library are "
                "of different make; is there a second MPI or torch in the image?",
            )
        return tuple(sorted(found, key=lambda said: int(said["rank"])))

    def require_ok(self, outcomes: Sequence[Outcome]) -> None:
        """Make sure that every command ended with 0.

        Raises:
            CheckFailed: one did not. Those that failed because of another are told last, or not at all.

        """
        failed = [
            (node, outcome) for node, outcome in zip(self.nodes, outcomes, strict=False) if not outcome.ok
        ]
        if not failed:
            return
        explained = [
            (node, said) for node, outcome in failed for said in self.said(outcome) if said.get("error")
        ]
        if explained:
            raise CheckFailed.because(
                *(
                    Finding(node=node.name, message=str(said["error"]), remedy=str(said.get("remedy", "")))
                    for node, said in explained
                )
            )
        ranked = sorted(failed, key=lambda pair: blame(pair[1]))
        raise CheckFailed.because(*(_ended(node.name, outcome) for node, outcome in ranked))

    def said(self, outcome: Outcome) -> tuple[dict[str, Any], ...]:
        """Read what payload scripts said in this run; what is left of another run does not count."""
        found = []
        for line in outcome.stdout.splitlines():
            _, marker, text = line.partition(MARKER)
            if not marker:
                continue
            try:
                said = json.loads(text)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("nonce") == self.nonce:
                found.append(said)
        return tuple(found)

    def put_digits(self) -> str:
        """Copy the handwritten digits to every node; their path there."""
        data = self._digits().read_bytes()
        for node in self.nodes:
            node.put("digits.csv.gz", data)
        return f"{self.cluster.folder}/digits.csv.gz"

    def _command(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None) -> Command:
        return Command(argv=tuple(argv), timeout=timeout * self.options.patience, env=env or {})

    def _run(self, jobs: Sequence[tuple[int, Command]]) -> tuple[Outcome, ...]:
        outcomes = run_together([(self.nodes[index], command) for index, command in jobs])
        for (index, command), outcome in zip(jobs, outcomes, strict=True):
            text = outcome.stdout + (f"\n[stderr]\n{outcome.stderr}" if outcome.stderr.strip() else "")
            self.steps.append(
                Step(
                    node=self.nodes[index].name,
                    command=self._shown(str(command)),
                    exit_code=outcome.code,
                    timed_out=outcome.timed_out,
                    seconds=round(outcome.seconds, 3),
                    output=text.strip()[-_SHOWN:],
                )
            )
        return outcomes

    def _shown(self, command: str) -> str:
        """Write a command as the report shows it: the same on every host."""
        for word, shown in ((self.cluster.folder, "SMOKE"), (self.cluster.python[0], "python")):
            command = command.replace(word, shown)
        return command


def blame(outcome: Outcome) -> int:
    """Rank failed commands of one job by how likely they are the cause: 0 failed by itself, 3 only waited.

    A rank whose peer died or hung says so, and fails as well; the one that hung says nothing and is ended.
    """
    if outcome.code is None or _lost_peer(outcome):
        return 3
    return 2 if outcome.timed_out else 1 if outcome.code == _TERMINATED else 0


def _lost_peer(outcome: Outcome) -> bool:
    return any(sign in outcome.stderr for sign in _PEER_LOST)


def _ended(node: str, outcome: Outcome) -> Finding:
    if outcome.code is None:
        return Finding(node=node, message=outcome.last_words, remedy="see the check `contents`")
    if outcome.timed_out:
        message = f"did not end within {outcome.seconds:.0f} s; its last words: {outcome.last_words}"
        remedy = "a rank that hangs waits for a peer, or computes for ever: the report has the whole output"
    elif outcome.code == _TERMINATED:
        message = f"still ran after {outcome.seconds:.0f} s, when others had given up, and was ended"
        remedy = "it hung, or was not reached any more: the report has the whole output"
    elif _lost_peer(outcome):
        message = f"lost its peer: {outcome.last_words}"
        remedy = "the cause is on the other node"
    else:
        message = f"ended with {outcome.code}: {outcome.last_words}"
        remedy = "the report has the whole output"
    return Finding(node=node, message=message, remedy=remedy)
