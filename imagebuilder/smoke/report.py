"""The report: which image was tested, what was run, the results, and whether they are a proof."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from imagebuilder.core import files, jsontext
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError

# A report on sixteen nodes with all of their output takes two megabytes.
_LIMIT = 32_000_000
_MOST_VALUES = 500_000
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
_Model = TypeVar("_Model", bound=BaseModel)
Status = Literal["passed", "failed", "skipped"]
Mode = Literal["cpu", "one-gpu-shared", "multi-gpu"]
Seconds = Annotated[float, Field(ge=0, description="How long it took, in seconds.")]


class Step(Strict):
    """One command on one node: how it ended, and the end of its output."""

    node: Annotated[str, Field(description="The node that it ran on.")]
    command: Annotated[
        str, Field(description="The command; `SMOKE` stands for the folder of the test's scripts.")
    ]
    exit_code: Annotated[
        int | None, Field(description="Null if the node was not running, or the command was abandoned.")
    ]
    timed_out: Annotated[bool, Field(description="It exceeded its time limit and was killed.")]
    seconds: Seconds
    output: Annotated[str, Field(description="The end of standard output, then of standard error.")]


class Finding(Strict):
    """One reason why a check failed, the node, and what to do about it."""

    node: Annotated[str, Field(description="The node; empty if it is about all nodes.")]
    message: Annotated[str, Field(description="What is wrong.")]
    remedy: Annotated[str, Field(description="What to do about it.")]


class Reused(Strict):
    """Which run a result was taken over from."""

    digest: Annotated[str, Field(description="The image that the check ran on.")]
    started: Annotated[str, Field(description="When that test began.")]


class CheckResult(Strict):
    """One check."""

    name: Annotated[str, Field(description="The name, as in `--check NAME`.")]
    title: Annotated[str, Field(description="What was run.")]
    criterion: Annotated[str, Field(description="What must hold for the check to pass.")]
    required: Annotated[bool, Field(description="The image is proven only if this check passes.")]
    exchanges: Annotated[bool, Field(description="A pass shows that the nodes computed something together.")]
    status: Annotated[Status, Field(description="The result.")]
    summary: Annotated[str, Field(description="What was seen, if it passed.")] = ""
    reason: Annotated[str, Field(description="Why it was skipped, if it was.")] = ""
    findings: Annotated[tuple[Finding, ...], Field(description="Why it failed, if it did.")] = ()
    evidence: dict[str, Any] = Field(
        default={}, description="What was seen, for programs. NaN and infinity are null."
    )
    steps: Annotated[tuple[Step, ...], Field(description="What was run, in order.")] = ()
    seconds: Seconds
    reused: Annotated[
        Reused | None,
        Field(description="Null if the check ran. Else it ran on an image with the same lower layers."),
    ] = None


class Host(Strict):
    """The machine that the test ran on, without its name."""

    cores: int
    memory_bytes: int
    gpus: Annotated[tuple[str, ...], Field(description="The GPUs that the test could use.")]
    driver: Annotated[str, Field(description="Version of the NVIDIA driver; empty without one.")] = ""
    engine: Annotated[str, Field(description="docker, podman or none.")]
    engine_version: str


class NodeGpu(Strict):
    """A GPU of a node. Two nodes have the same one if all ranks share it."""

    node: Annotated[str, Field(description="The node.")]
    index: Annotated[int, Field(description="Its number in the host's nvidia-smi.")]
    uuid: Annotated[str, Field(description="Its uuid; empty for a part of a GPU.")]
    name: Annotated[str, Field(description="Its model.")]


class Report(Strict):
    """All results of a smoke test. `passed` must agree with the checks, or the report is refused."""

    schema_version: Annotated[
        Literal[1], Field(description="Increases when a field changes its meaning or is removed.")
    ] = 1
    tool: Annotated[str, Field(description="Name and version of the program that wrote it.")]
    recipe: Annotated[str, Field(description="The recipe's name; empty if unknown.")]
    lock: Annotated[str, Field(description="The lock's checksum (sha256); empty if unknown.")]
    digest: Annotated[str, Field(description="The manifest's digest; empty if unknown.")]
    config: Annotated[
        str,
        Field(
            description="The digest of the image's config, which names every layer's tar (its diffID): it is "
            "the same however the layers are packed. Empty if unknown."
        ),
    ] = ""
    reference: Annotated[str, Field(description="The image's name or id in the engine.")]
    pins: Annotated[dict[str, str], Field(description="Components and their versions, as in the lock.")]
    runtime: Annotated[
        Literal["docker", "podman", "process", "ssh", "slurm", "job"],
        Field(description="What the nodes were run with; `job`: it was read from a job's log."),
    ]
    nodes: Annotated[int, Field(description="Number of nodes.")]
    nproc_per_node: Annotated[int, Field(description="Number of ranks on each node.")] = 1
    mode: Annotated[Mode, Field(description="How the tensors were sent.")]
    mode_reason: Annotated[str, Field(description="Why this mode was chosen.")]
    caveats: Annotated[tuple[str, ...], Field(description="What a pass does not prove.")]
    host: Annotated[Host, Field(description="The machine that the test ran on.")]
    gpus: Annotated[tuple[NodeGpu, ...], Field(description="The GPUs that each node got.")] = ()
    checks: Annotated[
        tuple[CheckResult, ...], Field(description="The checks, in the order in which they ran.")
    ]
    started: Annotated[
        str, Field(pattern=_TIME, description="When it began: `2026-01-02T03:04:05Z`, by this host's clock.")
    ]
    seconds: Seconds
    earlier: Annotated[
        Earlier | None, Field(description="The report that results were taken over from; null if none were.")
    ] = None
    passed: Annotated[
        bool,
        Field(description="No check failed, all required checks passed, and so did one with `exchanges`."),
    ]

    @model_validator(mode="after")
    def _consistent(self) -> Report:
        if self.passed != verdict(self.checks):
            raise ValueError("`passed` does not follow from the checks")
        return self


class Earlier(Strict):
    """The report in which the reused checks ran, and the image that it is about."""

    manifest: Annotated[str, Field(description="The manifest of that image, as it is.")]
    config: Annotated[str, Field(description="The config of that image, as it is.")]
    report: Annotated[Report, Field(description="The report.")]


Report.model_rebuild()


class Judged(Protocol):
    """The fields of a check that decide the verdict."""

    @property
    def required(self) -> bool: ...
    @property
    def exchanges(self) -> bool: ...
    @property
    def status(self) -> Status: ...


def verdict(checks: Sequence[Judged]) -> bool:
    """Return True for a proof: no check failed, all required ones passed, and one was between nodes."""
    return (
        all(check.status != "failed" for check in checks)
        and all(check.status == "passed" for check in checks if check.required)
        and any(check.status == "passed" and check.exchanges for check in checks)
    )


def shortcoming(report: Report) -> str:
    """Say what a report lacks to be a proof; empty if it lacks nothing, or if a check failed."""
    if report.passed or any(check.status == "failed" for check in report.checks):
        return ""
    missing = [check.name for check in report.checks if check.required and check.status != "passed"]
    return f"required but not run: {', '.join(missing)}" if missing else "the nodes computed nothing together"


def told(check: CheckResult) -> str:
    """Return what was seen in a check that passed, and where it ran if not on this image."""
    if check.reused is None:
        return check.summary
    return f"reused from {check.reused.digest[:19]} of {check.reused.started}: {check.summary}"


def told_gpus(gpus: Sequence[NodeGpu]) -> str:
    """Say which node got which GPU."""
    return "; ".join(f"{gpu.node} has {gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)


def dumps(report: Report) -> str:
    """Return a report as JSON, keys in the order of the model."""
    return json.dumps(jsontext.plain(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(report: Report, path: Path) -> None:
    """Write a report to a file, atomically.

    Raises:
        InputError: the file cannot be written.

    """
    files.write(path, dumps(report))


def read_bytes(path: Path) -> bytes:
    """Read the file of a report, at most one byte more than a report may have.

    Raises:
        OSError: the file cannot be read.

    """
    with path.open("rb") as file:
        return file.read(_LIMIT + 1)


def parse(data: bytes, model: type[_Model]) -> _Model:
    """Parse a report, within limits, into the fields that a model has.

    Raises:
        ValueError: it is too large, not JSON, has a key twice, or does not fit the model (`ValidationError`).

    """
    jsontext.loads(data, limit=_LIMIT, most=_MOST_VALUES, unique=True)
    return model.model_validate_json(data)


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        InputError: it is missing, is not a report, or contradicts itself.

    """
    hint = "run the smoke test again"
    try:
        return parse(read_bytes(path), Report)
    except OSError as error:
        raise InputError(f"the report cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = printable(".".join(str(step) for step in first["loc"]))
        raise InputError(
            f"is not a report of this version: {first['msg']}",
            where=f"{path}: {where}".rstrip(": "),
            hint=hint,
        ) from None
    except ValueError as error:
        raise InputError(f"the report cannot be read: it {error}", where=str(path), hint=hint) from None


def schema() -> dict[str, Any]:
    """Describe the report as JSON Schema 2020-12."""
    described = Report.model_json_schema()
    # A report can hold an earlier one, so pydantic puts the whole model among the definitions.
    described = {**described["$defs"]["Report"], "$defs": described["$defs"]}
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described["title"] = "imagebuilder smoke report"
    return described


def lines(report: Report, width: int = 110) -> tuple[str, ...]:
    """Format a report as text: a line for each check, every failure with its remedy, and the verdict."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    rows = [f"{'check':{name_width}}  result   seconds"]
    for check in report.checks:
        head = f"{check.name:{name_width}}  {check.status:7}  {check.seconds:7.1f}  "
        detail = check.reason if check.status == "skipped" else told(check)
        if check.status == "failed":
            detail = check.findings[0].message.partition("\n")[0] if check.findings else ""
        rows += _row(head, detail, width)
    for check in report.checks:
        for finding in check.findings:
            where = f"{check.name}, {finding.node}" if finding.node else check.name
            rows += ["", *_wrapped(f"FAILED {where}: {finding.message}", width)]
            if finding.remedy:
                rows += _wrapped(f"  -> {finding.remedy}", width)
    rows += ["", *_conclusion(report, width)]
    return tuple(rows)


def _row(head: str, detail: str, width: int) -> list[str]:
    """Write the result of a check beside its name, wrapped to the width of the line."""
    room = max(width - len(head), 20)
    words = textwrap.shorten(detail, 3 * room, placeholder=" ...")
    first, *rest = textwrap.wrap(words, room, break_on_hyphens=False) or [""]
    return [f"{head}{first}".rstrip(), *(" " * len(head) + line for line in rest)]


def _conclusion(report: Report, width: int) -> list[str]:
    count = {
        status: sum(c.status == status for c in report.checks) for status in ("passed", "failed", "skipped")
    }
    counted = ", ".join(f"{number} {status}" for status, number in count.items() if number)
    word = "passed" if report.passed else "FAILED"
    subject = report.recipe or report.reference
    rows = _wrapped(
        f"{subject}: {word} in {report.seconds:.0f} s on {report.nodes} nodes ({report.runtime}), "
        f"mode {report.mode}: {counted}",
        width,
    )
    missing = shortcoming(report)
    if missing:
        rows += _wrapped(f"not a proof: {missing}", width)
    rows += _wrapped(f"mode {report.mode}: {report.mode_reason}", width)
    if report.gpus:
        rows += _wrapped(f"GPUs: {told_gpus(report.gpus)}", width)
    reused = [check.name for check in report.checks if check.reused]
    if reused and report.earlier:
        rows += _wrapped(
            f"reused: {', '.join(reused)} did not run; they passed at {report.earlier.report.started} on "
            f"{report.earlier.report.digest}, from which this image differs only in your own files",
            width,
        )
    for caveat in report.caveats:
        rows += _wrapped(f"note: {caveat}", width)
    return rows


def _wrapped(text: str, width: int) -> list[str]:
    rows: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        rows += textwrap.wrap(line, width, subsequent_indent=indent + "  ", break_on_hyphens=False) or [""]
    return rows
