"""A check, and the session that it works with: the nodes, the target, and the transcript of its commands."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from imagebuilder import catalog
from imagebuilder.catalog import Framework, Launcher
from imagebuilder.errors import ImagebuilderError
from imagebuilder.smoke.blame import blame, ended
from imagebuilder.smoke.nodes.cluster import Cluster, Command, Node, NodeLayout, Outcome, Place, run_together
from imagebuilder.smoke.report import Finding, Mode, Step
from imagebuilder.smoke.target import Promise, SmokeOptions, SmokeTarget

# Payload scripts print one line with this marker for each rank; see payload/common.py.
MARKER = "@imagebuilder-smoke "
_SHOWN = 4000

Digits = Literal["none", "few", "all"]


class CheckFailed(ImagebuilderError):
    """The criterion of a check does not hold. `where` of each problem is the node."""

    exit_code = 1

    @classmethod
    def because(cls, *findings: Finding, evidence: Mapping[str, Any] | None = None) -> CheckFailed:
        """Fail for several reasons at once, with the evidence."""
        error = cls(findings[0].message)
        error.findings = findings
        error.evidence = evidence or {}
        return error

    def __init__(self, message: str, *, node: str = "", remedy: str = "") -> None:
        """Fail for one reason: the node, what is wrong, and what to do about it."""
        super().__init__(message, where=node, hint=remedy)
        self.findings: tuple[Finding, ...] = (Finding(node=node, message=message, remedy=remedy),)
        self.evidence: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Passed:
    """The result of a check that passed: one line for people, and evidence for programs."""

    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of the image.

    Attributes:
        name: one word, for tables and `SmokeOptions.only`.
        order: checks with a lower number run earlier; the shipped ones leave gaps of ten for others.
        title: what is run.
        criterion: what exactly must hold.
        run: runs the check; returns what it saw, or raises `CheckFailed`.
        skip: returns the reason why the check cannot run here, or nothing.
        required: whether an image that promises this is proven only if the check passes.
        asked: whether this run, by its options, also requires the check to pass.
        exchanges: a pass shows that the nodes computed something together.
        reusable: a pass holds for other images with the same layers below the user's own files.
        digits: which handwritten digits it trains on: none, 5000, or all of them.

    """

    name: str
    order: int
    title: str
    criterion: str
    run: Callable[[Session], Passed]
    skip: Callable[[Session], str] = lambda _session: ""
    required: Callable[[Promise], bool] = lambda _promise: True
    asked: Callable[[Session], bool] = lambda _session: False
    exchanges: bool = False
    reusable: bool = False
    digits: Callable[[SmokeOptions], Digits] = lambda _options: "none"

    def is_required(self, session: Session) -> bool:
        """Return True if a run proves nothing unless this check passes."""
        return self.required(session.promise) or self.asked(session)


class Session:
    """One running smoke test."""

    def __init__(  # noqa: PLR0917 - one call, beside the start of the nodes
        self,
        cluster: Cluster,
        target: SmokeTarget,
        options: SmokeOptions,
        mode: Mode,
        environment: Mapping[str, str],
        digits: Callable[[bool], Path],
    ) -> None:
        """Take the running nodes and the image's environment.

        `digits` fetches the data for training: all digits, or 5000.
        """
        self.cluster = cluster
        self.target = target
        self.options = options
        self.mode: Mode = mode
        # Ranks repeat it in their answers, so that leftovers of another run are not taken for answers.
        self.nonce = secrets.token_hex(8)
        self.environment = environment
        self.steps: list[Step] = []
        # Of several frameworks in the image, the one that is proven now.
        self.turn = ""
        self._digits = digits

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.cluster.nodes

    @property
    def nnodes(self) -> int:
        return len(self.cluster.nodes)

    @property
    def layout(self) -> NodeLayout:
        """All nodes, with the requested number of ranks on each."""
        return NodeLayout(nnodes=self.nnodes, nproc_per_node=self.options.nproc_per_node)

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    @property
    def device(self) -> str:
        return "cpu" if self.mode == "cpu" else "cuda"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the first node has: `torch`, `mpi4py`, `mpirun`; empty if its Python does not start.

        Frameworks are listed by the name of their module.
        """
        outcome = self.run(0, self.script("facts.py"), timeout=60)
        found = self.said(outcome)
        return found[0] if outcome.ok and found else {}

    @property
    def promise(self) -> Promise:
        """What the image promises in this run."""
        return Promise(
            runtime=self.cluster.kind,
            mode=self.mode,
            pins=dict(self.target.pins),
            ssh=self.target.has_ssh,
            own_training=self.target.training is not None,
            own_tests=bool(self.target.tests),
        )

    def frameworks(self, check: str) -> tuple[str, ...]:
        """Return the frameworks that a check runs with: all pinned ones, else all installed ones.

        A pinned framework is one of them even if it is not installed: the check then fails.
        """
        known = catalog.frameworks(check)
        pinned = tuple(name for name in known if self.target.pin(name))
        return pinned or tuple(name for name, each in known.items() if self.facts.get(each.module))

    def installed(self, check: str) -> bool:
        """Return True if the image's Python has a framework that the check can run with."""
        return any(self.facts.get(each.module) for each in catalog.frameworks(check).values())

    def framework(self, check: str) -> Framework | None:
        """Return the framework that a check runs with now: the one in `turn`, else the first."""
        names = self.frameworks(check)
        name = self.turn if self.turn in names else next(iter(names), "")
        return catalog.frameworks(check).get(name)

    def payload(self, check: str) -> str:
        """Return the script that a check runs with the image's framework.

        Raises:
            CheckFailed: the image has no framework.

        """
        framework = self.framework(check)
        if framework is None:
            raise CheckFailed("the image has no framework to run this with")
        return framework.payloads[check]

    def launcher(self, check: str) -> Launcher:
        """Return the launcher that a check starts ranks with.

        Raises:
            CheckFailed: the image's framework has no launcher.

        """
        framework = self.framework(check)
        if framework is None or framework.launcher is None:
            raise CheckFailed("the image has no framework with a launcher")
        return framework.launcher

    def script(self, name: str, *arguments: str | int) -> tuple[str, ...]:
        """Return the command that runs a payload script, with this run's nonce."""
        words = (f"{self.cluster.folder}/{name}", "--nonce", self.nonce, *map(str, arguments))
        return (*self.cluster.python, *words)

    def run(
        self, index: int, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run a command on one node, and record it."""
        return self._run([(self.nodes[index], None, self._command(argv, timeout, env))])[0]

    def run_everywhere(
        self,
        argv: Callable[[int], Sequence[str]],
        *,
        timeout: float,
        env: Callable[[int], Mapping[str, str]] | None = None,
        grace: float | None = None,
    ) -> tuple[Outcome, ...]:
        """Run a command on all nodes at once, and record it; the functions get the node's index.

        When one fails, the others are killed after `grace` seconds.
        """
        jobs = [
            (self.nodes[index], None, self._command(argv(index), timeout, env(index) if env else None))
            for index in range(self.nnodes)
        ]
        return self._run(jobs, grace)

    def rank_env(self, index: int) -> dict[str, str]:
        """Return the variables of the ranks on a node: the device, and the network."""
        env = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **self.cluster.rank_env(index)}
        if self.mode != "cpu":
            env["NCCL_DEBUG"] = "INFO"
        if self.mode == "one-gpu-shared":
            # NCCL refuses two ranks on one GPU of a host. So the ranks must look like different hosts to
            # NCCL, and use what works between any two hosts. See docs/explanation/smoke-test.md.
            env |= {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
        return env

    def peer(self, index: int) -> str:
        """Return the name of a node that this node has to reach."""
        return self.cluster.host(1 if index == 0 else 0)

    def ssh(self, host: str, *argv: str) -> tuple[str, ...]:
        """Return the command that runs another command through ssh, given only a host's name."""
        return ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", host, *argv)

    def mpirun(self, hosts: Sequence[str], *argv: str, slots: int = 1) -> tuple[str, ...]:
        """Return the mpirun command for ranks on each host. All other settings must be in the image."""
        places = ",".join(f"{host}:{slots}" for host in hosts)
        return ("mpirun", "-np", str(len(hosts) * slots), "--host", places, *argv)

    def mpi(self, *argv: str, timeout: float) -> Outcome:
        """Run a command as every rank of MPI, started by mpirun on the first node or by the scheduler."""
        scheduler, slots = self.cluster.scheduler, self.layout.nproc_per_node
        if scheduler is not None:
            return self._run([(scheduler, None, self._command(argv, timeout, None))])[0]
        hosts = [self.cluster.host(index) for index in range(self.nnodes)]
        return self.run(0, self.mpirun(hosts, *argv, slots=slots), timeout=timeout)

    @property
    def mpi_starter(self) -> str:
        """The program that starts ranks of MPI."""
        return self.cluster.scheduler.name if self.cluster.scheduler else "mpirun"

    def agents(self, check: str, place: str, *arguments: str) -> Callable[[int], tuple[str, ...]]:
        """Return a function from a node's index to its launcher's command.

        The launchers of all nodes meet at one address, and run the check's script.
        """
        launcher, name = self.launcher(check), self.payload(check)
        values = {
            "nodes": self.nnodes,
            "ranks": self.layout.nproc_per_node,
            "place": place,
            "job": self.nonce,
        }
        options = tuple(option.format_map(values) for option in launcher.options)

        def argv(index: int) -> tuple[str, ...]:
            script = self.script(name, "--device", self.device, "--peer", self.peer(index), *arguments)
            # Without the Python interpreter in front: a launcher starts its own.
            return (*self.cluster.launcher(launcher), *options, *script[len(self.cluster.python) :])

        return argv

    def launch(
        self, name: str, *arguments: str | int, timeout: float, layout: NodeLayout | None = None
    ) -> tuple[Mapping[str, Any], ...]:
        """Run a payload script as every rank of a job, as variables tell it; returns the answer of each rank.

        Raises:
            CheckFailed: a rank failed, hung, or did not answer for this run.

        """
        return self.ranks(self.start(name, *arguments, timeout=timeout, layout=layout), layout)

    def start(
        self,
        name: str,
        *arguments: str | int,
        timeout: float,
        layout: NodeLayout | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Outcome, ...]:
        """Run a payload script as every rank of a job, as `launch` does; returns how each rank ended.

        `env` adds to the variables of a rank.
        """
        layout = layout or self.layout
        job = {
            "MASTER_ADDR": self.cluster.host(0),
            "MASTER_PORT": str(self.cluster.port()),
            "WORLD_SIZE": str(layout.world_size),
            "LOCAL_WORLD_SIZE": str(layout.nproc_per_node),
        }
        if any(each.addresses and name in each.payloads.values() for each in catalog.frameworks().values()):
            places = (
                f"{self.cluster.host(place.node_rank)}:{self.cluster.port()}" for place in layout.places
            )
            job["IMAGEBUILDER_RANKS"] = ",".join(places)

        def command(place: Place) -> Command:
            # Named as torchrun names them; the node rank is its "group rank".
            who = {
                "RANK": str(place.rank),
                "LOCAL_RANK": str(place.local_rank),
                "GROUP_RANK": str(place.node_rank),
            }
            peer = self.peer(place.node_rank)
            argv = self.script(name, "--device", self.device, "--peer", peer, *arguments)
            return self._command(
                argv, timeout, {**self.rank_env(place.node_rank), **(env or {}), **job, **who}
            )

        return self._run(
            [(self.nodes[place.node_rank], place.rank, command(place)) for place in layout.places]
        )

    def ranks(
        self, outcomes: Sequence[Outcome], layout: NodeLayout | None = None
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the answers of all ranks of a job, sorted by rank.

        Raises:
            CheckFailed: a rank failed, hung, or did not answer for this run.

        """
        self.require_ok(outcomes)
        world_size = (layout or self.layout).world_size
        found = [said for outcome in outcomes for said in self.said(outcome)]
        # An image may answer anything: only a number can be a rank.
        numbers = [said.get("rank") for said in found]
        ranks = sorted(rank if isinstance(rank, int) else -1 for rank in numbers)
        sizes = {str(said.get("world_size")) for said in found}
        if ranks != list(range(world_size)) or sizes != {str(world_size)}:
            raise CheckFailed(
                f"{world_size} ranks were started; those that answered say that they are rank "
                + ", ".join(f"{said.get('rank')} of {said.get('world_size')}" for said in found),
                remedy="each rank believes that it is a job of its own if launcher and library come from "
                "different releases; does the image have a second MPI or torch?",
            )
        return tuple(sorted(found, key=lambda said: int(said["rank"])))

    def node_of(self, rank: int) -> str:
        """Return the node that a rank of the job runs on."""
        return self.nodes[rank // self.layout.nproc_per_node].name

    def require_ok(self, outcomes: Sequence[Outcome]) -> None:
        """Check that every command ended with 0.

        Raises:
            CheckFailed: one did not. Commands that only failed because of another come last, or are left out.

        """
        failed = [outcome for outcome in outcomes if not outcome.ok]
        if not failed:
            return
        explained = [
            (outcome, said) for outcome in failed for said in self.said(outcome) if said.get("error")
        ]
        if explained:
            raise CheckFailed.because(
                *(
                    Finding(node=outcome.node, message=str(said["error"]), remedy=str(said.get("remedy", "")))
                    for outcome, said in explained
                )
            )
        raise CheckFailed.because(*(ended(outcome) for outcome in sorted(failed, key=blame)))

    def said(self, outcome: Outcome) -> tuple[dict[str, Any], ...]:
        """Read the answers of payload scripts to this run; answers to other runs are ignored."""
        found = []
        for line in outcome.stdout.splitlines():
            _, marker, text = line.partition(MARKER)
            if not marker:
                continue
            try:
                said = json.loads(text)
                # JSON can contain half a surrogate pair, which cannot be written as UTF-8.
                json.dumps(said, ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                continue
            if isinstance(said, dict) and said.get("nonce") == self.nonce:
                found.append(said)
        return tuple(found)

    def put_digits(self, *, full: bool = False) -> str:
        """Copy the handwritten digits, 5000 or all of them, to every node; returns their path there."""
        name = "digits.tgz" if full else "digits.csv.gz"
        data = self._digits(full).read_bytes()
        for node in self.nodes:
            node.put(name, data)
        return f"{self.cluster.folder}/{name}"

    def _command(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None) -> Command:
        return Command(argv=tuple(argv), timeout=timeout * self.options.patience, env=env or {})

    def _run(
        self, jobs: Sequence[tuple[Node, int | None, Command]], grace: float | None = None
    ) -> tuple[Outcome, ...]:
        """Run commands on nodes, some of them as ranks."""
        ran = self._together(jobs, grace)
        outcomes = []
        for (node, rank, command), outcome in zip(jobs, ran, strict=True):
            outcomes.append(dataclasses.replace(outcome, node=node.name, rank=rank))
            text = outcome.stdout + (f"\n[stderr]\n{outcome.stderr}" if outcome.stderr.strip() else "")
            self.steps.append(
                Step(
                    node=node.name,
                    command=self._shown(str(command)),
                    exit_code=outcome.code,
                    timed_out=outcome.timed_out,
                    seconds=round(outcome.seconds, 3),
                    output=text.strip()[-_SHOWN:],
                )
            )
        return tuple(outcomes)

    def _together(
        self, jobs: Sequence[tuple[Node, int | None, Command]], grace: float | None
    ) -> tuple[Outcome, ...]:
        return run_together([(node, command) for node, _, command in jobs], grace=grace)

    def _shown(self, command: str) -> str:
        """Return a command as the report shows it: the same on every host."""
        for word, shown in ((self.cluster.folder, "SMOKE"), (self.cluster.python[0], "python")):
            command = command.replace(word, shown)
        return command
