"""The report: what was run on which image, what came of it, and whether it is a proof. Data and I/O only."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from imagebuilder import textfile
from imagebuilder.errors import InputError

Status = Literal["passed", "failed", "skipped"]
Mode = Literal["cpu", "one-gpu-shared", "multi-gpu"]
Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Step(_Strict):
    """One command on one node: how it ended, and the last of what it said.

    The exit code is null where there is none: the node was not running, or the command was given up.
    """

    node: str
    command: str
    exit_code: int | None
    timed_out: bool
    seconds: Seconds
    output: str


class Finding(_Strict):
    """One way in which a check failed, on which node, and what to do about it."""

    node: str
    message: str
    remedy: str


class CheckResult(_Strict):
    """One check. `required`: the image is not proven unless this passed; `reason`: why it was skipped."""

    name: str
    title: str
    criterion: str
    required: bool
    exchanges: Annotated[bool, Field(description="A pass means that the nodes computed something together.")]
    status: Status
    summary: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: dict[str, Any] = {}
    steps: tuple[Step, ...] = ()
    seconds: Seconds


class Host(_Strict):
    """Where it ran, without naming it."""

    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    engine: str
    engine_version: str


class Report(_Strict):
    """All that a smoke test found. `passed` follows from the checks; one that says otherwise is refused."""

    schema_version: Literal[1] = 1
    tool: str
    recipe: str
    lock: str
    digest: Annotated[str, Field(description="The manifest's digest, empty where it is not known.")]
    reference: str
    pins: dict[str, str]
    runtime: Literal["docker", "podman", "process"]
    nodes: int
    nproc_per_node: Annotated[int, Field(description="Ranks on each node.")] = 1
    mode: Mode
    mode_reason: str
    caveats: tuple[str, ...]
    host: Host
    checks: tuple[CheckResult, ...]
    seconds: Seconds
    passed: bool

    @model_validator(mode="after")
    def _consistent(self) -> Report:
        if self.passed != verdict(self.checks):
            raise ValueError("`passed` does not follow from the checks")
        return self


def verdict(checks: tuple[CheckResult, ...]) -> bool:
    """Say whether checks make a proof: none failed, all required ones passed, and one was between nodes."""
    return (
        all(check.status != "failed" for check in checks)
        and all(check.status == "passed" for check in checks if check.required)
        and any(check.status == "passed" and check.exchanges for check in checks)
    )


def dumps(report: Report) -> str:
    """Write a report as JSON text, keys in the order of the model."""
    return json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def write(report: Report, path: Path) -> None:
    """Write a report in one step.

    Raises:
        InputError: the place cannot be written.

    """
    textfile.write(path, dumps(report))


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        InputError: it is not there, not a report, or one that contradicts itself.

    """
    hint = "run the smoke test again"
    try:
        return Report.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the report cannot be read: {error}", where=str(path), hint=hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InputError(
            f"is not a report of this version: {first['msg']}",
            where=f"{path}: {where}".rstrip(": "),
            hint=hint,
        ) from None


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


def _row(head: str, detail: str, width: int) -> list[str]:
    """Write what a check found beside its name; what does not fit on the line goes on below."""
    words = textwrap.shorten(detail, 3 * (width - len(head)), placeholder=" ...")
    first, *rest = textwrap.wrap(words, max(width - len(head), 20), break_on_hyphens=False) or [""]
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
    if not report.passed and not count["failed"]:
        missing = [c.name for c in report.checks if c.required and c.status != "passed"]
        why = (
            f"required but not run: {', '.join(missing)}"
            if missing
            else "the nodes computed nothing together"
        )
        rows += _wrapped(f"not a proof: {why}", width)
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
