"""Decide whether a smoke report proves an image, for every gate and every verb.

The decision follows from the checks. A report's own fields `passed` and `required` can only make it fail.
Reports of other versions of imagebuilder can be read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from imagebuilder.smoke.report import Status, parse, read_bytes, verdict


class _Lenient(BaseModel):
    """Ignores unknown keys, because reports of other versions of imagebuilder may have more."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class CheckVerdict(_Lenient):
    """One check: see `imagebuilder.smoke.report.CheckResult`."""

    name: str
    required: bool
    exchanges: bool
    status: Status


class Verdict(_Lenient):
    """The part of a report that decides: the image, where it was tested, and the result of each check."""

    digest: str
    nodes: int
    runtime: str
    mode: str
    pins: dict[str, str]
    checks: tuple[CheckVerdict, ...]
    passed: bool

    @property
    def shortcoming(self) -> str:
        """Why the report does not prove its image; empty if it does."""
        if any(check.status == "failed" for check in self.checks):
            return "the smoke test failed"
        passed = {check.name for check in self.checks if check.status == "passed"}
        wanted = required(self.runtime, self.mode, self.pins)
        wanted |= {check.name for check in self.checks if check.required}
        if wanted - passed:
            return f"required checks did not run: {', '.join(sorted(wanted - passed))}"
        if not verdict(self.checks):
            return "the nodes computed nothing together"
        if not self.passed:
            return "the report contradicts itself: every check passed, and `passed` is false"
        return "" if self.runtime in {"docker", "podman"} else "the test ran without containers"

    def __str__(self) -> str:
        """Summarise it: `8 of 12 checks passed on 2 nodes, mode cpu`."""
        passed = sum(check.status == "passed" for check in self.checks)
        return f"{passed} of {len(self.checks)} checks passed on {self.nodes} nodes, mode {self.mode}"


def required(runtime: str, mode: str, pins: Mapping[str, str]) -> frozenset[str]:
    """Return the checks that must pass for what an image promises; see `Check.required`.

    Args:
        runtime: what ran the nodes: `docker`, `podman` or `process`.
        mode: how tensors were sent.
        pins: component and version, as the lock has them.

    """
    # Late: the checks are loaded only when a report is judged.
    from imagebuilder.smoke import checks
    from imagebuilder.smoke.target import Promise

    promise = Promise(runtime=runtime, mode=mode, pins=pins)
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
