"""Where the time of a warm build goes: stacks of our own code, and the programs that install the packages.

    python -m bench.profiles RECIPE --store STORE --out bench/profiles

The recipe's packages have to be in the store (`imagebuilder fetch RECIPE`); every layer is made again, in a
store of its own that is thrown away. Two builds are sampled:

- `<recipe>-python.folded` by py-spy, threads of Python with the C functions below them, as folded stacks: one
  line a stack, frames with `;` between them, and how often it was seen. Every flame graph program takes it.
  `<recipe>-python.txt` sums them up by our function that was at work, and the library it was in.
- `<recipe>-programs.txt` by perf, all programs that run: mmdebstrap, dpkg and what they start.

py-spy is installed from the package index into an environment that is thrown away; perf is Debian's
linux-perf. Both need root.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.fetch import locked
from imagebuilder.store import Store
from imagebuilder.workflow import read_plan

PROGRAM = Path(sys.executable).parent / "imagebuilder"
_HOUR = 3600.0
_RATE = "20"  # samples a second
# Stacks that were seen less often than this share of all are left out: they say nothing, and fill the file.
_SHARE = 0.002
_TOP = 25
# A function without a name is its library; who waits for a lock or a child is not at work.
_ADDRESS = re.compile(r"0x[0-9a-f]+ \((?:.*/)?(.*)\)")
_WAITING = ("PyThread_acquire_lock", "poll ", "wait4 ", "select ")
_LINES = re.compile(r":\d+\)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.recipe.stem
    with tempfile.TemporaryDirectory(prefix="profiles-") as word:
        folder = Path(word)
        folded = sampled(arguments.recipe, arguments.store, folder)
        (arguments.out / f"{name}-python.folded").write_text(short(folded), encoding="utf-8")
        (arguments.out / f"{name}-python.txt").write_text(top(folded), encoding="utf-8")
        programs = ran(arguments.recipe, arguments.store, folder)
        (arguments.out / f"{name}-programs.txt").write_text(programs, encoding="utf-8")
    print(top(folded))
    print(programs)
    return 0


def sampled(recipe: Path, store: Path, folder: Path) -> str:
    """Build under py-spy; returns folded stacks."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    process.run([uv, "pip", "install", "--quiet", "--python", python, "py-spy"], timeout=_HOUR)
    raw = folder / "stacks"
    recorder: list[str | Path] = [
        folder / "venv" / "bin" / "py-spy",
        "record",
        "--format",
        "raw",
        "--output",
        raw,
    ]
    recorder += ["--rate", _RATE, "--native"]
    process.run([*recorder, "--", *_build(recipe, store, folder / "python")], timeout=_HOUR)
    shutil.rmtree(folder / "python")
    return raw.read_text(encoding="utf-8", errors="replace")


def ran(recipe: Path, store: Path, folder: Path) -> str:
    """Build under perf; returns the share of each program and of its functions."""
    data = folder / "perf.data"
    recorder: list[str | Path] = ["perf", "record", "--quiet", "--freq", _RATE, "--output", data]
    process.run([*recorder, "--", *_build(recipe, store, folder / "programs")], timeout=_HOUR)
    report: list[str | Path] = [
        "perf",
        "report",
        "--stdio",
        "--input",
        data,
        "--percent-limit",
        "0.5",
        "--sort",
    ]
    said = ""
    for title, sort in (("program", "comm"), ("program and library", "comm,dso"), ("function", "dso,symbol")):
        lines = process.run([*report, sort], timeout=_HOUR).stdout.splitlines()
        rows = [line.rstrip().removesuffix("-      -").rstrip() for line in lines]
        said += "\n".join([f"By {title}:", *(row for row in rows if row and not row.startswith("#")), "\n"])
    return said


def short(folded: str) -> str:
    """Sum stacks that differ in lines and addresses only; leave out who waits, and what was hardly seen."""
    counts = _counts(folded)
    least = _SHARE * counts.total()
    kept = sorted((stack, count) for stack, count in counts.items() if count >= least)
    return "".join(f"{';'.join(stack)} {count}\n" for stack, count in kept)


def top(folded: str) -> str:
    """List which functions of ours were at work most often, and in which library."""
    counts: Counter[str] = Counter()
    for stack, count in _counts(folded).items():
        ours = [frame for frame in stack if "(imagebuilder/" in frame]
        below = "" if not ours or stack[-1] == ours[-1] else f"  in {stack[-1]}"
        counts[(ours[-1] if ours else stack[0]) + below] += count
    total = counts.total() or 1
    return "".join(f"{count / total:6.1%}  {frame}\n" for frame, count in counts.most_common(_TOP))


def _counts(folded: str) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_ADDRESS.sub(r"\1", _LINES.sub(")", frame)) for frame in stack.split(";")]
        if not any(frame.startswith(_WAITING) for frame in frames):
            # Frames without a name, one below the other in one library, say no more than one.
            counts[tuple(frame for frame, _ in itertools.groupby(frames))] += int(count)
    return counts


def _build(recipe: Path, source: Path, place: Path) -> Sequence[str | Path]:
    """Give a store of its own the packages of the recipe; returns the command that builds there."""
    lock, _ = read_plan(recipe)
    locked.copy(lock.files, Store(source), Store(place))
    return (PROGRAM, "build", recipe, "--store", place, "--json", "--progress", "lines")


if __name__ == "__main__":
    sys.exit(main())
