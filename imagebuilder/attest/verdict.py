"""What a smoke report says, read so that reports of other versions of imagebuilder can be read too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from imagebuilder import jsontext

_LIMIT = 32_000_000
_MOST_VALUES = 500_000


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class CheckVerdict(_Lenient):
    """One check: see `imagebuilder.smoke.report.CheckResult`."""

    name: str
    required: bool
    exchanges: bool
    status: Literal["passed", "failed", "skipped"]


class Verdict(_Lenient):
    """The part of a report that counts: which image, where, and what came of each check."""

    digest: str
    nodes: int
    mode: str
    checks: tuple[CheckVerdict, ...]
    passed: bool

    @property
    def is_proof(self) -> bool:
        """Whether it is one by the rules of `imagebuilder.smoke.report.verdict`, whatever it says itself."""
        return (
            self.passed
            and all(check.status != "failed" for check in self.checks)
            and all(check.status == "passed" for check in self.checks if check.required)
            and any(check.status == "passed" and check.exchanges for check in self.checks)
        )

    def __str__(self) -> str:
        """Say it in a line: `8 of 12 checks passed on 2 nodes, mode cpu`."""
        passed = sum(check.status == "passed" for check in self.checks)
        return f"{passed} of {len(self.checks)} checks passed on {self.nodes} nodes, mode {self.mode}"


def read(data: bytes) -> Verdict:
    """Read a report.

    Raises:
        ValueError: it is not one.

    """
    try:
        jsontext.loads(data, limit=_LIMIT, most=_MOST_VALUES, unique=True)
        return Verdict.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(f"is not a smoke report: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise ValueError(f"is not a smoke report: it {error}") from None
