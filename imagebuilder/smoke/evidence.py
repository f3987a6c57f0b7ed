"""The parts of `CheckResult.evidence` that views and other programs read, and their meaning.

Reports may come from other versions. So each reader here takes what it understands and ignores the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagebuilder.smoke.nccllog import kind
from imagebuilder.smoke.report import CheckResult, Report, Status


class _Row(BaseModel):
    """Lenient, because other versions of imagebuilder may write more keys, or whole numbers as floats."""

    model_config = ConfigDict(extra="ignore", frozen=True)


_AnyRow = TypeVar("_AnyRow", bound=_Row)


class SweepRow(_Row):
    """One size and type of an allreduce.

    `collectives` and other checks that time allreduces have a list of these in `evidence["sweep"]`.
    """

    bytes: Annotated[int, Field(description="Size of the tensor.")]
    dtype: Annotated[str, Field(description="Type of its elements.")]
    seconds: Annotated[float, Field(description="Time of one allreduce.")]
    algbw_gbs: Annotated[float, Field(description="bytes / seconds, in 10^9 bytes a second.")]
    busbw_gbs: Annotated[
        float,
        Field(description="algbw * 2(n-1)/n for n ranks: the rate on each link, for any number of ranks."),
    ]


class ScalingRow(_Row):
    """One layout of nodes and processes. `scaling` has a list of these in `evidence["rows"]`.

    A layout that could not run has null for every number, and a reason.
    """

    nodes: Annotated[int, Field(description="Containers.")]
    processes: Annotated[int, Field(description="Ranks in each container.")]
    backend: Annotated[str, Field(description="nccl or gloo.")] = ""
    batch_per_rank: int | None = None
    batch_global: int | None = None
    epoch_seconds: float | None = None
    batch_median_ms: Annotated[float | None, Field(description="Median time of a batch.")] = None
    batch_p95_ms: Annotated[float | None, Field(description="95th percentile of the time of a batch.")] = None
    samples_per_second: float | None = None
    speedup: Annotated[float | None, Field(description="Speed relative to one node with one process.")] = None
    efficiency: Annotated[float | None, Field(description="Speed-up divided by the number of ranks.")] = None
    loss: float | None = None
    accuracy: Annotated[float | None, Field(description="On held-out digits, from 0 to 1.")] = None
    replica: Annotated[str | None, Field(description="First digits of the sha256 of the weights.")] = ""
    reason: Annotated[str, Field(description="Why it could not run, or empty.")] = ""


class PinRow(_Row):
    """One pin. `pins` has one in `evidence[NAME]` for each component that can report its version.

    `evidence["not asked"]` lists the others, with the reason.
    """

    pin: Annotated[str, Field(description="The version that the lock names.")]
    found: Annotated[str, Field(description="The version that is loaded on the first node.")]
    nodes: Annotated[dict[str, str], Field(description="The version that is loaded on each node.")]


class NetworkRow(_Row):
    """The network that NCCL used on one rank. `transport` has one in `evidence[RANK]` for each rank."""

    network: Annotated[str, Field(max_length=200, description="The plugin, as NCCL's log names it.")]


class Evidenced(Protocol):
    """The fields of a check that say what was seen."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def evidence(self) -> Mapping[str, Any]: ...


def sweeps(checks: Iterable[Evidenced]) -> Mapping[str, tuple[SweepRow, ...]]:
    """Read the allreduce sweeps, by the check that made them."""
    found = {entry.name: _rows(SweepRow, entry.evidence.get("sweep")) for entry in checks}
    return {name: rows for name, rows in found.items() if rows}


def busbw(checks: Iterable[Evidenced]) -> float:
    """Return the bus bandwidth of the largest allreduce, in 10^9 bytes a second; 0 if none was timed.

    If several checks timed it, the fastest counts. Only checks that passed do.
    """
    found = sweeps(entry for entry in checks if entry.status == "passed").values()
    return max((rows[-1].busbw_gbs for rows in found if math.isfinite(rows[-1].busbw_gbs)), default=0.0)


def transport(checks: Iterable[Evidenced]) -> str:
    """Return the network that NCCL used on all ranks: `socket`, `ib` or `ofi`; empty if that is not known."""
    passed = (entry for entry in checks if entry.name == "transport" and entry.status == "passed")
    kinds = {
        kind(row.network) for entry in passed for row in _rows(NetworkRow, list(entry.evidence.values()))
    }
    return kinds.pop() if len(kinds) == 1 else ""


def loaded(checks: Iterable[Evidenced]) -> dict[str, str]:
    """Return the version of each pin that the nodes loaded, by component; several where they differ."""
    rows = [
        (name, row) for entry in checks if entry.name == "pins" for name, row in _pin_rows(entry.evidence)
    ]
    return {name: ", ".join(sorted({row.found, *row.nodes.values()})) for name, row in rows}


def scaling(report: Report) -> tuple[ScalingRow, ...]:
    """Read the scaling table; empty if there is none."""
    return _rows(ScalingRow, _of(report, "scaling").get("rows"))


def losses(report: Report) -> tuple[float | None, ...]:
    """Read the loss of each logged step of the DDP job, mean over the ranks; None for NaN and infinity."""
    found = _of(report, "training").get("losses")
    if not isinstance(found, list | tuple):
        return ()
    return tuple(
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in found
    )


def pins(report: Report) -> Mapping[str, PinRow]:
    """Read the loaded version of each pin, by component."""
    return dict(_pin_rows(_of(report, "pins")))


def check(report: Report, name: str) -> CheckResult | None:
    """Find a check by its name."""
    return next((entry for entry in report.checks if entry.name == name), None)


def _pin_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, PinRow]]:
    for name, value in found.items():
        yield from ((name, row) for row in _rows(PinRow, [value]))


def _of(report: Report, name: str) -> Mapping[str, Any]:
    found = check(report, name)
    return found.evidence if found else {}


def _rows(kind: type[_AnyRow], values: Any) -> tuple[_AnyRow, ...]:
    found = []
    for value in values if isinstance(values, list | tuple) else ():
        try:
            found.append(kind.model_validate(value))
        except ValidationError:
            continue
    return tuple(found)
