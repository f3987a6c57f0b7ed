"""Read a job's log, and judge the smoke test that ran in the job.

The log is hostile: the image's own programs may have written into it, and so may everybody who carried it
here. It is read within limits. Lines say by themselves where they belong, so it does not matter in which
order they come, what stands before them, or whether they come twice. What contradicts itself is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO

from pydantic import Field, ValidationError

from imagebuilder.core import jsontext
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.smoke import gpus
from imagebuilder.smoke.job import TOOL, JobCluster, JobSession, JobStep, Order, steps
from imagebuilder.smoke.nodes.cluster import Command, Node, Outcome
from imagebuilder.smoke.report import CheckResult, Host, Report, verdict
from imagebuilder.smoke.run import Watch, all_checks, caveats, told_of
from imagebuilder.smoke.session import Check, CheckFailed

# A log of 16 nodes with all output of NCCL has a few megabytes.
LIMIT = 64_000_000
_RECORD_LIMIT = 16_000_000
_MOST_PIECES = 20_000
_MOST_VALUES = 500_000
_LINE = re.compile(
    rb"@imagebuilder-job ([0-9a-f]{32}) ([0-9]{1,2})/([0-9]{1,2}) ([0-9]{1,5})/([0-9]{1,5}) ([0-9a-f]{64}) "
    rb"([A-Za-z0-9+/=]{1,4000})[\r ]*$"
)
_MARKER = b"@imagebuilder-job "
_VOUCHED = "read from a job's log: whoever signed the report vouches for the log"
_Text = Annotated[str, Field(max_length=4096)]
_Output = Annotated[str, Field(max_length=1 << 20)]


class JobOutcome(Strict):
    """How one command of a step ended."""

    step: Annotated[int, Field(ge=0, le=10_000)]
    job: Annotated[int, Field(ge=0, le=10_000)]
    code: Annotated[int, Field(ge=-1, le=1000)] | None
    timed_out: bool
    seconds: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    stdout: _Output
    stderr: _Output


class NodeRecord(Strict):
    """What one node says; `hosts`, `ports` and `order` only node 0."""

    node: Annotated[int, Field(ge=0, le=15)]
    nonce: _Text
    own_name: _Text
    names: Annotated[tuple[_Text, ...], Field(min_length=3, max_length=3)]
    cores: Annotated[int, Field(ge=1, le=1 << 20)]
    memory_bytes: Annotated[int, Field(ge=0, le=1 << 60)]
    nvidia_smi: Annotated[str, Field(max_length=65536)]
    python: _Text
    started: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
    outcomes: Annotated[tuple[JobOutcome, ...], Field(max_length=10_000)]
    hosts: Annotated[tuple[_Text, ...], Field(max_length=16)] = ()
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], Field(max_length=10_000)] = ()
    order: Annotated[str, Field(max_length=4_000_000)] = ""


@dataclass(kw_only=True)
class _Pieces:
    """The lines about one node: how many there must be, the digest of all, and each one's text."""

    count: int
    digest: str
    texts: dict[int, bytes] = field(default_factory=dict)


def read(file: BinaryIO, where: str) -> Report:
    """Judge the test whose log this is.

    Args:
        file: the log.
        where: its name, for messages.

    Raises:
        InputError: it is too large, has no result, only a part of one, several, or a wrong one.

    """
    data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise InputError(
            f"is larger than {LIMIT // 1_000_000} MB",
            where=where,
            hint=f"keep the lines of the test: grep {_MARKER.decode().strip()} FILE",
        )
    nonce, pieces = _sorted(data, where)
    records = {
        node: _record(b"".join(found.texts[number] for number in sorted(found.texts)), found, node, where)
        for node, found in pieces.items()
    }
    for node, record in records.items():
        if (record.node, record.nonce) != (node, nonce):
            raise _wrong(
                where, f"what node {node} is said to have written is another node's, or another job's"
            )
    return _judged(_order(records[0], nonce, len(pieces), where), records, where)


def _sorted(data: bytes, where: str) -> tuple[str, dict[int, _Pieces]]:
    """Collect the lines of the test by node, and refuse what does not fit together."""
    found: dict[int, _Pieces] = {}
    job: tuple[bytes, int] | None = None
    for number, line in enumerate(data.split(b"\n"), 1):
        start = line.find(_MARKER)
        if start < 0:
            continue
        match = _LINE.match(line, start)
        if match is None:
            raise _wrong(f"{where}:{number}", "a line of the test is cut off or damaged")
        nonce, digest, text = match[1], match[6].decode(), match[7]
        node, nodes, piece, count = (int(match[index]) for index in range(2, 6))
        job = job or (nonce, nodes)
        if job != (nonce, nodes):
            raise InputError(
                "it holds the results of several jobs",
                where=f"{where}:{number}",
                hint=f"keep those of one: grep '{_MARKER.decode()}{nonce.decode()}' FILE",
            )
        if not (node < nodes and 2 <= nodes <= 16 and 1 <= piece <= count <= _MOST_PIECES):
            raise _wrong(f"{where}:{number}", "a line of the test has impossible numbers")
        pieces = found.setdefault(node, _Pieces(count=count, digest=digest))
        if (pieces.count, pieces.digest) != (count, digest) or pieces.texts.setdefault(piece, text) != text:
            raise _wrong(
                f"{where}:{number}", f"it holds two different results of node {node}: one of them is forged"
            )
    if job is None:
        raise InputError(
            "it holds no result of a smoke test",
            where=where,
            hint="give the whole log of node 0, of a job that `smoke-test --as-job` wrote",
        )
    for node in range(job[1]):
        there, count = (len(found[node].texts), found[node].count) if node in found else (0, 0)
        if there != count or not count:
            said = f"{there} of {count} lines" if count else "no line"
            raise InputError(
                f"it holds {said} of node {node}'s result",
                where=where,
                hint="the log was cut off, or the job is not done: read it again, with the log of node 0",
            )
    return job[0].decode(), found


def _record(text: bytes, pieces: _Pieces, node: int, where: str) -> NodeRecord:
    try:
        packed = base64.b64decode(text, validate=True)
        if hashlib.sha256(packed).hexdigest() != pieces.digest:
            raise _wrong(where, f"node {node}'s result does not have the digest that its lines name")
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, _RECORD_LIMIT)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise _wrong(where, f"node {node}'s result is larger than {_RECORD_LIMIT} bytes, or cut off")
        jsontext.loads(data, limit=_RECORD_LIMIT, most=_MOST_VALUES, unique=True)
        return NodeRecord.model_validate_json(data)
    except (binascii.Error, zlib.error) as error:
        raise _wrong(where, f"node {node}'s result cannot be unpacked: {error}") from None
    except ValidationError as error:
        said = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
        raise _wrong(where, f"node {node}'s result is not one: {printable(said)}") from None
    except ValueError as error:
        raise _wrong(where, f"node {node}'s result is not one: it {printable(str(error))}") from None


def _order(first: NodeRecord, nonce: str, nodes: int, where: str) -> Order:
    try:
        jsontext.loads(first.order, limit=_RECORD_LIMIT, unique=True)
        order = Order.model_validate_json(first.order)
    except ValueError:
        raise _wrong(where, "it does not say what was to be tested") from None
    if order.tool != TOOL:
        raise InputError(
            f"the job was written by {printable(order.tool)}, and this is {TOOL}",
            where=where,
            hint="read it with that version: it knows what it asked for",
        )
    if (order.nonce, order.nodes, len(first.hosts)) != (nonce, nodes, nodes):
        raise _wrong(where, "what node 0 says of the job is not what the lines say")
    return order


def _wrong(where: str, message: str) -> InputError:
    hint = "take the log from the job again; run the job again if that does not help"
    return InputError(message, where=where, hint=hint)


class _LogCluster(JobCluster):
    """The nodes of a job that has run."""

    def __init__(self, records: Mapping[int, NodeRecord], asked: Sequence[JobStep]) -> None:
        super().__init__(len(records))
        self.records = records
        names = [name for step in asked for name in step.ports]
        self.words = {
            **dict(zip(names, map(str, records[0].ports), strict=False)),
            "@PYTHON@": records[0].python,
        }
        for node in records:
            self.words[f"@HOST{node}@"] = records[0].hosts[node]
            self.words[f"@OWN{node}@"] = records[node].own_name
            self.words[f"@ADDRESS{node}@"] = records[node].names[2]

    def host(self, index: int) -> str:
        return self.records[0].hosts[index]

    def own_name(self, index: int) -> str:
        return self.records[index].own_name

    def address(self, index: int) -> str:
        return self.records[index].names[2]


class _Reading(JobSession):
    """Answers the checks with what the log holds."""

    def __init__(self, asked: Order, records: Mapping[int, NodeRecord]) -> None:
        self._asked = steps(asked)
        cluster = _LogCluster(records, self._asked)
        super().__init__(asked, cluster)
        self._words = cluster.words
        self._said = {
            (outcome.step, outcome.job, node): outcome
            for node, record in records.items()
            for outcome in record.outcomes
        }
        self._next = 0
        self.seconds: dict[str, float] = {}

    def _together(
        self,
        jobs: Sequence[tuple[Node, int | None, Command]],
        grace: float | None,  # noqa: ARG002
    ) -> tuple[Outcome, ...]:
        number = next(
            (
                index
                for index in range(self._next, len(self._asked))
                if self._asked[index].check == self.check
            ),
            None,
        )
        if number is None or len(self._asked[number].jobs) != len(jobs):
            raise CheckFailed("the job was not told to run what this check asks for")
        self._next = number + 1
        outcomes = []
        for index, ((node, _, command), asked) in enumerate(zip(jobs, self._asked[number].jobs, strict=True)):
            if list(map(self._put, asked.argv)) != list(map(self._put, command.argv)):
                raise CheckFailed("the job was told to run something else than this check asks for")
            said = self._said.get((number, index, self.nodes.index(node)))
            outcomes.append(_outcome(said))
        longest = max((outcome.seconds for outcome in outcomes), default=0.0)
        self.seconds[self.check] = self.seconds.get(self.check, 0.0) + longest
        return tuple(outcomes)

    def _put(self, text: str) -> str:
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text


def _outcome(said: JobOutcome | None) -> Outcome:
    if said is None:
        return Outcome(code=None, stdout="", stderr="the log does not say how this ended", seconds=0.0)
    return Outcome(
        code=said.code,
        stdout=said.stdout,
        stderr=said.stderr,
        seconds=said.seconds,
        timed_out=said.timed_out,
    )


def _judged(order: Order, records: Mapping[int, NodeRecord], where: str) -> Report:
    session = _Reading(order, records)

    def begun(check: Check) -> None:
        session.check = check.name

    try:
        results = all_checks(session, Watch(begun=begun), {})
    except (TypeError, KeyError, AttributeError, IndexError, ValueError, ArithmeticError) as error:
        # Inside an image that is tested while it runs, only its own programs could do this.
        raise _wrong(where, f"an answer in it makes no sense: {printable(str(error))[:200]}") from None
    timed = tuple(
        result.model_copy(update={"seconds": round(session.seconds.get(result.name, 0.0), 3)})
        for result in results
    )
    return _report(order, records, timed)


def _report(order: Order, records: Mapping[int, NodeRecord], results: tuple[CheckResult, ...]) -> Report:
    first = records[0]
    found = {node: gpus.parse(record.nvidia_smi) for node, record in sorted(records.items())}
    told = told_of([found[node].gpus for node in found]) if order.mode != "cpu" else ()
    notes = tuple(
        f"node{node} is {printable(record.own_name)}, {record.cores} cores, {record.memory_bytes >> 30} GiB, "
        f"Python {printable(record.python)}"
        for node, record in sorted(records.items())
    )
    values: dict[str, Any] = {
        "tool": order.tool,
        "recipe": order.recipe,
        "lock": order.lock,
        "digest": order.digest,
        "reference": order.reference,
        "pins": order.pins,
        "nodes": order.nodes,
        "nproc_per_node": order.nproc_per_node,
        "mode": order.mode,
    }
    return Report(
        **values,
        runtime="job",
        mode_reason="as the job was written",
        caveats=(_VOUCHED, *caveats(order.target, ("job", order.mode), results), *notes),
        host=Host(
            cores=first.cores,
            memory_bytes=first.memory_bytes,
            gpus=tuple(gpu.name for gpu in told),
            driver=found[0].driver,
            engine="none",
            engine_version="",
        ),
        gpus=told,
        checks=results,
        started=first.started,
        seconds=round(sum(result.seconds for result in results), 3),
        passed=verdict(results),
    )
