"""Feed every target with bad input, each in a process of its own, and write down what came of it.

    python -m tests.fuzz [--seconds 60] [--target NAME] [--out bench/fuzz.md]

Ends with 1 where anything crashed; the inputs that did are in `--keep`, to be made a case of
tests/cases/hostile once they are understood.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagebuilder.core import files, process
from imagebuilder.errors import ImagebuilderError
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import Counts

_HEADER = """# Hostile input

How everything that reads other people's files (`tests/fuzz/targets.py`) handles bad input. The engine is
[atheris](https://github.com/google/atheris), libFuzzer for Python: inputs that reach new code are kept and
mutated further. It starts from good input and from the cases in tests/cases/hostile; half of the mutations
know the format. *Refused* means one of imagebuilder's errors with its exit code. A *crash* is any other
exception, a message with control characters, an input that takes more than 20 seconds of a processor, a file
changed outside the given folder, a command that was run, or a connection to another host. *Memory* is how
much the process grew from its size before the first input, with the tests' servers. *Code reached* counts
edges between blocks of imagebuilder's bytecode, after the good input and at the end; what runs for the first
time while the good input is read does not count.

Made by `make fuzz`, {seconds:g} s for each target; seed {seed}.

| target | inputs | accepted | refused | crashes | worst seconds | peak MB | code reached |
|---|---:|---:|---:|---:|---:|---:|---:|
"""
_REACHED = re.compile(r"\b(?:INITED|NEW|REDUCE|pulse|RELOAD)\s+cov: ([0-9]+)")


def main() -> int:
    """Run, print, write; how many targets crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    words = ["--seed", str(given.seed % (1 << 31)), "--seconds", str(given.seconds)]
    words += ["--keep", str(given.keep)]
    with ThreadPoolExecutor(given.jobs) as pool:
        every = list(
            pool.map(
                lambda name: _counts(name, [*words, "--corpus", str(given.keep / "corpus" / name)]),
                given.target or TARGETS,
            )
        )
    head = _HEADER.format(seed=given.seed, seconds=given.seconds)
    text = head + "".join(map(_row, [*every, _sum(every)]))
    sys.stdout.write(text)
    for counts in every:
        for said in dict.fromkeys(counts.said):
            sys.stdout.write(f"\n{counts.target}:\n{said}\n")
    if given.out:
        files.write(given.out, text)
    return 1 if any(counts.crashes for counts in every) else 0


def _counts(name: str, words: list[str]) -> Counts:
    try:
        result = process.run([sys.executable, "-m", "tests.fuzz.engine", name, *words], timeout=7200)
        reached = list(map(int, _REACHED.findall(result.stderr))) or [0]
        counts = Counts(**json.loads(result.stdout.splitlines()[-1]))
        return dataclasses.replace(counts, reached=(reached[0], reached[-1]))
    except (ImagebuilderError, ValueError, IndexError) as error:
        return Counts(target=name, crashes=1, said=[f"the process ended: {error}"])


def _sum(every: list[Counts]) -> Counts:
    total = Counts(target="**all**")
    for counts in every:
        for name in ("inputs", "accepted", "refused", "crashes"):
            setattr(total, name, getattr(total, name) + getattr(counts, name))
        total.worst, total.growth = max(total.worst, counts.worst), max(total.growth, counts.growth)
    return dataclasses.replace(total)


def _row(counts: Counts) -> str:
    numbers = (counts.inputs, counts.accepted, counts.refused, counts.crashes)
    cells = [counts.target, *(f"{number:,}" for number in numbers), f"{counts.worst:.2f}"]
    reached = f"{counts.reached[0]:,} to {counts.reached[1]:,}" if counts.reached[1] else ""
    return f"| {' | '.join(cells)} | {counts.growth / 1e6:.0f} | {reached} |\n"


if __name__ == "__main__":
    sys.exit(main())
