"""What was measured: samples, their medians, and the file that keeps them all."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

# Values of a sample; seconds where they are not bytes.
BUILD, PUSH, PULL, IMPORT, SECONDS = "build", "push", "pull", "import", "seconds"
PUSHED, STORED, PACKED, UNPACKED = "pushed", "stored", "packed", "unpacked"
MEMORY, WRITTEN, BYTES = "memory", "written", "bytes"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement.

    Attributes:
        recipe: its name.
        work: what was done, a name of `works.WORKS`; or `limit: ...`, `consumer`, `render`.
        side: who did it; empty where there are no sides.
        round: from 1 on.
        values: by the names above: seconds, and bytes.
        note: what a reader has to know of it.

    """

    recipe: str
    work: str
    side: str
    round: int
    values: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the bench on one recipe.

    Attributes:
        recipe: its name.
        command: how it was asked for.
        machine: what it ran on.
        facts: bytes that are known without measuring: `changed: WORK`, of the wheels that a change brings;
            `distinct`, of all different components of the six recipes; `largest`, of one of them.
        compared: the sides, in their order.
        samples: what came out.

    """

    recipe: str
    compared: tuple[str, ...]
    command: str
    machine: Mapping[str, str]
    facts: Mapping[str, int]
    samples: tuple[Sample, ...]

    def medians(self, work: str, side: str) -> dict[str, float]:
        """Take the median of each value over the rounds; empty where nothing was measured."""
        found = [sample for sample in self.samples if (sample.work, sample.side) == (work, side)]
        names = dict.fromkeys(name for sample in found for name in sample.values)
        return {name: statistics.median(s.values[name] for s in found if name in s.values) for name in names}

    def rounds(self, work: str, side: str) -> int:
        return sum((sample.work, sample.side) == (work, side) for sample in self.samples)

    def works(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sample.work for sample in self.samples))

    def sides(self, work: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sample.side for sample in self.samples if sample.work == work))


def total(values: Mapping[str, float]) -> float:
    """Seconds of building and pushing."""
    return values.get(BUILD, 0.0) + values.get(PUSH, 0.0)


def read(path: Path) -> tuple[Run, ...]:
    """Read the runs that a file keeps; none where there is no file."""
    if not path.exists():
        return ()
    return tuple(
        Run(
            **{
                **each,
                "compared": tuple(each["compared"]),
                "samples": tuple(Sample(**sample) for sample in each["samples"]),
            }
        )
        for each in json.loads(path.read_text(encoding="utf-8"))
    )


def keep(run: Run, path: Path) -> tuple[Run, ...]:
    """Write a run into the file; returns all runs.

    It takes the place of an older one of the same recipe and the same sides.
    """
    others = [each for each in read(path) if (each.recipe, each.compared) != (run.recipe, run.compared)]
    runs = tuple(sorted([*others, run], key=lambda each: (each.recipe, -len(each.compared), each.compared)))
    write(runs, path)
    return runs


def write(runs: Iterable[Run], path: Path) -> None:
    path.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
