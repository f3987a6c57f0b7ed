"""Decide whether a smoke report proves an image, for every gate and every verb.

The decision follows from the checks. A report's own fields `passed` and `required` can only make it fail.
Reports of other versions of imagebuilder can be read too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagebuilder.smoke import evidence
from imagebuilder.smoke.report import Status, parse, read_bytes, verdict

# The check that an image has to pass if its recipe has `checks: {training: ...}`.
OWN_TRAINING = "own-training"
# The same for `checks: {tests: ...}`.
OWN_TESTS = "own-tests"


class _Lenient(BaseModel):
    """Ignores unknown keys, because reports of other versions of imagebuilder may have more."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


# Whoever may push can attach a report, and these are printed.
_Word = Annotated[str, Field(max_length=200)]


class ReusedVerdict(_Lenient):
    """Where a check ran: see `imagebuilder.smoke.report.Reused`."""

    digest: _Word
    started: _Word


class CheckVerdict(_Lenient):
    """One check: see `imagebuilder.smoke.report.CheckResult`."""

    name: str
    required: bool
    exchanges: bool
    status: Status
    summary: str = ""
    evidence: dict[str, Any] = {}
    reused: ReusedVerdict | None = None


class HostVerdict(_Lenient):
    """Where the test ran: see `imagebuilder.smoke.report.Host`."""

    gpus: Annotated[tuple[_Word, ...], Field(max_length=4096)] = ()
    driver: _Word = ""


class EarlierVerdict(_Lenient):
    """The report that results were taken over from: see `imagebuilder.smoke.report.Earlier`."""

    manifest: str
    config: str
    report: Verdict


class Verdict(_Lenient):
    """The part of a report that decides: the image, where it was tested, and the result of each check."""

    digest: str
    config: _Word = ""
    started: _Word = ""
    nodes: int
    nproc_per_node: int = 1
    runtime: str
    mode: _Word
    pins: dict[str, str]
    host: HostVerdict = HostVerdict()
    checks: tuple[CheckVerdict, ...]
    earlier: EarlierVerdict | None = None
    passed: bool

    @property
    def transport(self) -> str:
        """The network that NCCL used; empty if that is not known."""
        return evidence.transport(self.checks)

    @property
    def busbw(self) -> float:
        """The bus bandwidth of the largest allreduce, in 10^9 bytes a second; 0 if none was timed."""
        return evidence.busbw(self.checks)

    @property
    def loaded(self) -> dict[str, str]:
        """The version of each pin that the nodes loaded, by component."""
        return evidence.loaded(self.checks)

    def shortcoming(self, promised: Mapping[str, str]) -> str:
        """Return why the report does not prove its image; empty if it does, or if only `reuse` can tell.

        Args:
            promised: component and version, as the image has them: the report may name fewer.

        """
        if any(check.status == "failed" for check in self.checks):
            return "the smoke test failed"
        passed = {check.name for check in self.checks if check.status == "passed"}
        wanted = required(self.runtime, self.mode, {**self.pins, **promised})
        wanted |= {check.name for check in self.checks if check.required}
        if wanted - passed:
            return f"required checks did not run: {', '.join(sorted(wanted - passed))}"
        if not verdict(self.checks):
            return "the nodes computed nothing together"
        if not self.passed:
            return "the report contradicts itself: every check passed, and `passed` is false"
        if self.runtime not in {"docker", "podman", "job"}:
            return "the test ran without containers"
        return self._reuse_problem(promised)

    def _reuse_problem(self, promised: Mapping[str, str]) -> str:
        """Say why results that were taken over do not hold, by what the report itself says."""
        for check in self.checks:
            if check.reused and (problem := self._why_not(check, promised)):
                return f"`{check.name}` is said to be reused, and {problem}"
        return ""

    def _why_not(self, check: CheckVerdict, promised: Mapping[str, str]) -> str:
        then = self.earlier.report if self.earlier else None
        if then is None:
            return "the earlier report is missing"
        if then.earlier is not None or any(entry.reused for entry in then.checks):
            return "not all checks of the earlier report ran"
        if problem := then.shortcoming(promised):
            return f"the earlier report is not a proof: {problem}"
        if _way(then) != _way(self):
            return "the earlier test ran in another way"
        if check.name not in reusable():
            return "it has to run on every image"
        where = ReusedVerdict(digest=then.digest, started=then.started)
        is_same = check.reused == where and check.model_copy(update={"reused": None}) in then.checks
        return "" if is_same else "the earlier report says something else"

    def __str__(self) -> str:
        """Summarise it: `8 passed, 4 skipped on 2 nodes, mode cpu`."""
        counts = Counter(check.status for check in self.checks)
        results = ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
        reused = sum(check.reused is not None for check in self.checks)
        taken = f" ({reused} of them reused from {self.earlier.report.digest[:19]})" if self.earlier else ""
        return f"{results}{taken} on {self.nodes} nodes, mode {self.mode}"


def reusable() -> frozenset[str]:
    """Return the checks whose results hold as long as only the user's own files change."""
    from imagebuilder.smoke import checks

    return frozenset(check.name for check in checks.load() if check.reusable)


def _way(report: Verdict) -> tuple[object, ...]:
    return (report.runtime, report.mode, report.nodes, report.nproc_per_node, report.pins)


def required(
    runtime: str, mode: str, pins: Mapping[str, str], *, own_training: bool = False
) -> frozenset[str]:
    """Return the checks that must pass for what an image promises; see `Check.required`.

    Args:
        runtime: what ran the nodes: `docker`, `podman` or `process`.
        mode: how tensors were sent.
        pins: component and version, as the lock has them.
        own_training: whether the recipe has a training check of its own.

    """
    # Late: the checks are loaded only when a report is judged.
    from imagebuilder.smoke import checks
    from imagebuilder.smoke.target import Promise

    promise = Promise(runtime=runtime, mode=mode, pins=pins, own_training=own_training)
    return frozenset(check.name for check in checks.load() if check.required(promise))


def read(data: bytes) -> Verdict:
    """Read a report.

    Raises:
        ValueError: it is not a report.

    """
    try:
        return parse(data, Verdict)
    except ValidationError as error:
        raise ValueError(f"is not a smoke report: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise ValueError(f"is not a smoke report: it {error}") from None


def read_file(path: Path) -> tuple[bytes, Verdict]:
    """Read a report and its bytes from a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a report.

    """
    data = read_bytes(path)
    return data, read(data)
