"""The report: what was run on which image, what came of it, and whether it is a proof. Data and I/O only."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from imagebuilder.core import files, jsontext
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError

# That of sixteen nodes with everything that they said has two megabytes.
_LIMIT = 32_000_000
_MOST_VALUES = 500_000
_Model = TypeVar("_Model", bound=BaseModel)
Status = Literal["passed", "failed", "skipped"]
Mode = Literal["cpu", "one-gpu-shared", "multi-gpu"]
Seconds = Annotated[float, Field(ge=0, description="How long it took, in seconds.")]


class Step(Strict):
    """One command on one node: how it ended, and the last of what it said."""

    node: Annotated[str, Field(description="Where it ran.")]
    command: Annotated[str, Field(description="`SMOKE` stands for the folder of the test's scripts.")]
    exit_code: Annotated[
        int | None, Field(description="Null where the node was not running, or the command was given up.")
    ]
    timed_out: Annotated[bool, Field(description="It did not end in time, and was ended.")]
    seconds: Seconds
    output: Annotated[str, Field(description="The end of standard output, then of standard error.")]


class Finding(Strict):
    """One way in which a check failed, on which node, and what to do about it."""

    node: Annotated[str, Field(description="Empty where it is about all of them.")]
    message: Annotated[str, Field(description="What is wrong.")]
    remedy: Annotated[str, Field(description="What to do about it.")]


class CheckResult(Strict):
    """One check."""

    name: Annotated[str, Field(description="One word, as `--check` takes it.")]
    title: Annotated[str, Field(description="What was run.")]
    criterion: Annotated[str, Field(description="What had to hold.")]
    required: Annotated[bool, Field(description="The image is not proven unless this passed.")]
    exchanges: Annotated[bool, Field(description="A pass means that the nodes computed something together.")]
    status: Annotated[Status, Field(description="How it ended.")]
    summary: Annotated[str, Field(description="What was seen, where it passed.")] = ""
    reason: Annotated[str, Field(description="Why it was skipped.")] = ""
    findings: Annotated[tuple[Finding, ...], Field(description="Why it failed.")] = ()
    evidence: dict[str, Any] = Field(
        default={}, description="What was seen, for programs. What was no number is null."
    )
    steps: Annotated[tuple[Step, ...], Field(description="What was run, in order.")] = ()
    seconds: Seconds


class Host(Strict):
    """Where it ran, without naming it."""

    cores: int
    memory_bytes: int
    gpus: Annotated[tuple[str, ...], Field(description="Those that the test could use.")]
    engine: Annotated[str, Field(description="docker, podman, or none.")]
    engine_version: str


class Report(Strict):
    """All that a smoke test found. `passed` follows from the checks; one that says otherwise is refused."""

    schema_version: Annotated[
        Literal[1], Field(description="Goes up when what is here changes its meaning, or goes.")
    ] = 1
    tool: Annotated[str, Field(description="Name and version of what wrote it.")]
    recipe: Annotated[str, Field(description="The recipe's name, empty where it is not known.")]
    lock: Annotated[str, Field(description="The lock's sha256, empty where it is not known.")]
    digest: Annotated[str, Field(description="The manifest's digest, empty where it is not known.")]
    reference: Annotated[str, Field(description="What the engine knows the image by.")]
    pins: Annotated[dict[str, str], Field(description="Component and version, as the lock has them.")]
    runtime: Annotated[Literal["docker", "podman", "process"], Field(description="What ran the nodes.")]
    nodes: Annotated[int, Field(description="How many.")]
    nproc_per_node: Annotated[int, Field(description="Ranks on each node.")] = 1
    mode: Annotated[Mode, Field(description="What carried the tensors.")]
    mode_reason: Annotated[str, Field(description="Why this mode.")]
    caveats: Annotated[tuple[str, ...], Field(description="What a pass does not say.")]
    host: Annotated[Host, Field(description="Where it ran.")]
    checks: Annotated[tuple[CheckResult, ...], Field(description="In the order in which they ran.")]
    seconds: Seconds
    passed: Annotated[
        bool,
        Field(description="No check failed, all required ones passed, and one of those that exchange did."),
    ]

    @model_validator(mode="after")
    def _consistent(self) -> Report:
        if self.passed != verdict(self.checks):
            raise ValueError("`passed` does not follow from the checks")
        return self


class Judged(Protocol):
    """What the verdict depends on of one check."""

    @property
    def required(self) -> bool: ...
    @property
    def exchanges(self) -> bool: ...
    @property
    def status(self) -> Status: ...


def verdict(checks: Sequence[Judged]) -> bool:
    """Say whether checks make a proof: none failed, all required ones passed, and one was between nodes."""
    return (
        all(check.status != "failed" for check in checks)
        and all(check.status == "passed" for check in checks if check.required)
        and any(check.status == "passed" and check.exchanges for check in checks)
    )


def shortcoming(report: Report) -> str:
    """Say what a report lacks to be a proof; empty where it lacks nothing, and where a check failed."""
    if report.passed or any(check.status == "failed" for check in report.checks):
        return ""
    missing = [check.name for check in report.checks if check.required and check.status != "passed"]
    return f"required but not run: {', '.join(missing)}" if missing else "the nodes computed nothing together"


def dumps(report: Report) -> str:
    """Write a report as JSON text, keys in the order of the model."""
    plain = _plain(report.model_dump())
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(report: Report, path: Path) -> None:
    """Write a report in one step.

    Raises:
        InputError: the place cannot be written.

    """
    files.write(path, dumps(report))


def read_bytes(path: Path) -> bytes:
    """Read a report's file, one byte further than a report may be long.

    Raises:
        OSError: the file cannot be read.

    """
    with path.open("rb") as file:
        return file.read(_LIMIT + 1)


def parse(data: bytes, model: type[_Model]) -> _Model:
    """Read a report within bounds, as far as a model describes it.

    Raises:
        ValueError: it is too large, not JSON, has a key twice, or does not fit the model (`ValidationError`).

    """
    jsontext.loads(data, limit=_LIMIT, most=_MOST_VALUES, unique=True)
    return model.model_validate_json(data)


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        InputError: it is not there, not a report, or one that contradicts itself.

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
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described["title"] = "imagebuilder smoke report"
    return described


def lines(report: Report, width: int = 110) -> tuple[str, ...]:
    """Lay a report out as text: a line a check, then every failure with its remedy, then the verdict."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    rows = [f"{'check':{name_width}}  result   seconds"]
    for check in report.checks:
        head = f"{check.name:{name_width}}  {check.status:7}  {check.seconds:7.1f}  "
        detail = check.reason if check.status == "skipped" else check.summary
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


def _plain(value: Any) -> Any:
    """Replace what JSON and UTF-8 cannot hold: NaN and infinities by null, half a surrogate pair by `?`."""
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(head: str, detail: str, width: int) -> list[str]:
    """Write what a check found beside its name; what does not fit on the line goes on below."""
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
    for caveat in report.caveats:
        rows += _wrapped(f"note: {caveat}", width)
    return rows


def _wrapped(text: str, width: int) -> list[str]:
    rows: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        rows += textwrap.wrap(line, width, subsequent_indent=indent + "  ", break_on_hyphens=False) or [""]
    return rows
