"""A smoke test that a job runs by itself, because nothing reaches into it from outside.

Written: every check runs once against nodes that do not exist, which notes the commands that it asks for. The
job carries these commands and the scripts. Read: every check runs again, and gets the answers that the job's
log holds. So the checks are the same as everywhere. A check asks for all that it needs before it judges.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import io
import json
import secrets
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NoReturn, cast

from pydantic import Field

from imagebuilder import __version__, catalog
from imagebuilder.catalog import Launcher, Probe
from imagebuilder.core.model import Strict
from imagebuilder.recipe.checks import TrainingCheck
from imagebuilder.smoke.nodes import packing
from imagebuilder.smoke.nodes.cluster import FOLDER, Command, Node, Outcome, RuntimeKind
from imagebuilder.smoke.report import Mode
from imagebuilder.smoke.run import CHECKS, reason
from imagebuilder.smoke.session import CheckFailed, Session
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget

TOOL = f"imagebuilder {__version__}"
_Text = Annotated[str, Field(max_length=4096)]
_NO_DATA = "the job carries no data to train on"

# One word of a command: at most 128 KiB. `exec`, so that signals reach the script.
_BOOT = """\
import base64, io, os, sys, tarfile
folder = {folder!r}
os.mkdir(folder, 0o700)
how = {{"filter": "data"}} if hasattr(tarfile, "data_filter") else {{}}
tarfile.open(fileobj=io.BytesIO(base64.b64decode({data!r}))).extractall(folder, **how)
os.execv(sys.executable, [sys.executable, folder + "/job.py", folder])
"""


class Order(Strict):
    """What a job is to test. It stands in the job, and again in its log."""

    tool: _Text
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    reference: _Text
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    recipe: _Text
    lock: _Text
    pins: Annotated[dict[_Text, _Text], Field(max_length=200)]
    # Of components that come from catalog files of the user.
    probes: Annotated[dict[_Text, Probe], Field(max_length=200)]
    ssh_user: _Text
    ssh_port: Annotated[int, Field(ge=1, le=65535)]
    logins: bool
    training: TrainingCheck | None
    environment: dict[_Text, Annotated[str, Field(max_length=32_768)]]
    mode: Mode
    nodes: Annotated[int, Field(ge=2, le=16)]
    nproc_per_node: Annotated[int, Field(ge=1, le=8)]

    @property
    def target(self) -> SmokeTarget:
        return SmokeTarget(
            reference=self.reference,
            digest=self.digest,
            recipe=self.recipe,
            lock=self.lock,
            pins=tuple(sorted(self.pins.items())),
            probes=tuple(sorted(self.probes.items())),
            ssh_user=self.ssh_user,
            ssh_port=self.ssh_port,
            training=self.training,
            has_ssh=self.logins,
        )

    @property
    def options(self) -> SmokeOptions:
        return SmokeOptions(nodes=self.nodes, nproc_per_node=self.nproc_per_node)


def order(
    target: SmokeTarget, environment: Mapping[str, str], *, mode: Mode, layout: tuple[int, int], logins: bool
) -> Order:
    """Say what a job is to test.

    Args:
        target: the image.
        environment: its variables.
        mode: how tensors are sent.
        layout: number of nodes, and of ranks on each.
        logins: whether the nodes have keys to log in to each other.

    """
    return Order(
        tool=TOOL,
        nonce=secrets.token_hex(16),
        reference=target.reference,
        digest=target.digest,
        recipe=target.recipe,
        lock=target.lock,
        pins=dict(target.pins),
        probes=dict(target.probes),
        ssh_user=target.ssh_user,
        ssh_port=target.ssh_port,
        logins=logins,
        training=target.training,
        environment=dict(environment),
        mode=mode,
        nodes=layout[0],
        nproc_per_node=layout[1],
    )


@dataclass(frozen=True, kw_only=True)
class JobCommand:
    """One command of a step: on which node, as which rank, and what. `@WORD@` is known only in the job."""

    node: int
    rank: int | None
    argv: tuple[str, ...]
    env: Mapping[str, str]
    timeout: float


@dataclass(frozen=True, kw_only=True)
class JobStep:
    """Commands that run at once, the check that asked for them, and the ports that were chosen for them."""

    check: str
    jobs: tuple[JobCommand, ...]
    grace: float | None
    ports: tuple[str, ...]


def steps(asked: Order) -> tuple[JobStep, ...]:
    """Find out what the checks ask for, without a node."""
    session = _Asking(asked)
    for check in CHECKS:
        session.check = check.name
        names = session.frameworks(check.name)
        for name in () if reason(check, session) else names if len(names) > 1 else ("",):
            session.turn = name
            # The answers stand for nothing, so a check may end in any way once it has asked.
            with contextlib.suppress(Exception):
                check.run(session)
        session.turn = ""
    return tuple(session.asked)


def command(asked: Order, port: int) -> tuple[str, ...]:
    """Return what each node runs: a Python script that carries the test.

    Args:
        asked: what to test.
        port: of node 0, where the nodes meet.

    """
    plan = {
        "nonce": asked.nonce,
        "nodes": asked.nodes,
        "port": port,
        "environment": asked.environment,
        "order": asked.model_dump_json(),
        "steps": [dataclasses.asdict(step) for step in steps(asked)],
    }
    items = [
        *(item for item in packing.payload() if item.path != FOLDER),
        packing.Item(path=f"{FOLDER}/plan.json", mode=0o600, data=json.dumps(plan).encode()),
    ]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for item in items:
            info = tarfile.TarInfo(str(PurePosixPath(item.path).relative_to(FOLDER)))
            info.mode, info.type = item.mode, tarfile.REGTYPE if item.data is not None else tarfile.DIRTYPE
            info.size = len(item.data or b"")
            tar.addfile(info, io.BytesIO(item.data or b""))
    data = base64.b64encode(gzip.compress(archive.getvalue(), 9, mtime=0)).decode()
    return ("python", "-c", _BOOT.format(folder=f"{FOLDER}-{asked.nonce[:12]}", data=data))


class JobNode:
    """A node that only the job reaches."""

    def __init__(self, name: str) -> None:
        """Take its name."""
        self.name = name

    def run(self, command: Command) -> NoReturn:
        raise NotImplementedError  # a session of a job notes its commands instead

    def stop(self) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        raise NotImplementedError


class JobCluster:
    """The nodes of a job, by the words that stand for them."""

    kind: RuntimeKind = "job"
    folder = "@SMOKE@"
    subnet = ""
    shared = ""
    python: tuple[str, ...] = ("@PYTHON@",)
    scheduler = None

    def __init__(self, count: int) -> None:
        """Take the number of nodes."""
        self.nodes: tuple[Node, ...] = tuple(JobNode(f"node{number}") for number in range(count))
        self.ports: list[str] = []

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        return (*self.python, "-m", launcher.module)

    def state(self, index: int) -> tuple[bool, str]:  # noqa: ARG002 - what is in the log has run
        return True, ""

    def host(self, index: int) -> str:
        return f"@HOST{index}@"

    def own_name(self, index: int) -> str:
        return f"@OWN{index}@"

    def address(self, index: int) -> str:
        return f"@ADDRESS{index}@"

    def port(self) -> int:
        # A word in place of a number: it becomes part of a text anyway.
        self.ports.append(f"@PORT{len(self.ports)}@")
        return cast("int", self.ports[-1])

    def rank_env(self, index: int) -> dict[str, str]:  # noqa: ARG002 - each host is one for NCCL
        return {}


class JobSession(Session):
    """The part of a session that is the same when a job is written and when its log is read."""

    def __init__(self, asked: Order, cluster: JobCluster) -> None:
        """Take what to test, and the nodes."""

        def refuse(full: bool) -> Path:  # noqa: ARG001 - `reason` skips such checks
            raise CheckFailed(_NO_DATA)

        super().__init__(cluster, asked.target, asked.options, asked.mode, asked.environment, refuse)
        self.nonce = asked.nonce[:16]
        self.check = ""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the pins promise: nobody can be asked before the job runs."""
        names = dict(self.target.pins)
        found = {framework.module: name in names for name, framework in catalog.frameworks().items()}
        programs = {
            "mpirun": bool(self.target.mpi) and self.target.has_ssh,
            "ssh": self.target.has_ssh,
            "gcc": "gcc" in names,
            "mpi4py": "mpi4py" in names,
        }
        return {**found, **{name: name if there else "" for name, there in programs.items()}}

    def mpirun(self, hosts: Sequence[str], *argv: str, slots: int = 1) -> tuple[str, ...]:
        # Open MPI 5.0 leaves out its own node if that is not named as by `hostname`: pods have a domain.
        own = self.target.mpi == "openmpi"
        known = ["localhost" if own and host == self.cluster.host(0) else host for host in hosts]
        return super().mpirun(known, *argv, slots=slots)


class _Asking(JobSession):
    """Notes what the checks ask for, and answers with what stands for anything."""

    def __init__(self, asked: Order) -> None:
        super().__init__(asked, JobCluster(asked.nodes))
        self.asked: list[JobStep] = []
        self._ports = 0

    def _together(
        self, jobs: Sequence[tuple[Node, int | None, Command]], grace: float | None
    ) -> tuple[Outcome, ...]:
        ports = cast("JobCluster", self.cluster).ports
        step = JobStep(
            check=self.check,
            jobs=tuple(self._noted(*job) for job in jobs),
            grace=grace,
            ports=tuple(ports[self._ports :]),
        )
        self._ports = len(ports)
        self.asked.append(step)
        return tuple(Outcome(code=0, stdout=" ", stderr="", seconds=0.0) for _ in jobs)

    def _noted(self, node: Node, rank: int | None, command: Command) -> JobCommand:
        return JobCommand(
            node=self.nodes.index(node),
            rank=rank,
            argv=command.argv,
            env=dict(command.env),
            timeout=command.timeout,
        )

    def said(self, outcome: Outcome) -> tuple[dict[str, Any], ...]:  # noqa: ARG002
        return (_Anything(),)

    def ranks(self, outcomes: Sequence[Outcome], layout: Any = None) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002
        places = (layout or self.layout).places
        return tuple(_Anything(rank=place.rank, host=f"node{place.node_rank}") for place in places)


class _Anything(dict[str, Any]):
    """An answer that every check goes on with, as far as one can."""

    def __missing__(self, key: str) -> _Anything:
        return _Anything()

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002
        return self[key]

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __int__(self) -> int:
        return 0
