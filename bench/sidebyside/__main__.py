"""Four ways to the same image, one after the other in one run, as medians of several rounds.

    python -m bench.sidebyside recipes/cuda12-torch.yaml bench/recipes/cuda-jax.yaml --out bench/results.md

Each recipe is locked and its Debian base made before a clock starts; all sides start from that base, install
the locked versions and push to a registry server that is empty when a round begins. A round does every kind
of work on every side in turn. Nothing else may run on this host meanwhile. It needs root: each side with a
Dockerfile gets a container engine of its own, so that cold means empty, and nobody else's cache is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import words
from bench.sidebyside import consumer, limits, machine, rendering, samples, tables
from bench.sidebyside.samples import Run, Sample
from bench.sidebyside.sides import SIDES
from bench.sidebyside.variants import Bases, known_bytes, prepare, scheme
from bench.sidebyside.works import WORKS, Bench, measure
from imagebuilder.core.progress import LineProgress
from imagebuilder.errors import EnvironmentFault, ImagebuilderError
from imagebuilder.store import Store

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "recipes" / "cuda12-torch.yaml"
# What is measured beside the work.
EXTRAS = ("limits", "consumer", "render")
# Seconds that a gigabyte of wheels took on two cores of 2024, building and pushing: for the estimate only.
_COLD = {"plain": 100, "uv": 70, "rendered": 110, "imagebuilder": 20}
_CHANGED = {"plain": 100, "uv": 50, "rendered": 40, "imagebuilder": 5}


def main() -> int:
    arguments = _arguments()
    # Ended from outside, the engines and registries have to end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for recipe in arguments.recipes:
            run = _measured(recipe.resolve(), arguments)
            runs = samples.keep(run, arguments.samples) if arguments.samples else (run,)
            text = tables.page(runs)
            if arguments.out:
                arguments.out.write_text(text, encoding="utf-8")
    except ImagebuilderError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(text)
    return 0


def _measured(recipe: Path, arguments: argparse.Namespace) -> Run:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.work_folder))
    found: list[Sample] = []
    facts: dict[str, int] = {}
    try:
        for sample in _samples(recipe, folder, arguments, facts):
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in sample.values.items())
            _say(f"{sample.recipe}, round {sample.round}: {sample.work} {sample.side}: {shown}")
            found.append(sample)
            if arguments.samples:  # a run that is cut off keeps what it has
                samples.keep(_run(recipe, arguments, facts, found), arguments.samples)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _run(recipe, arguments, facts, found)


def _run(
    recipe: Path, arguments: argparse.Namespace, facts: Mapping[str, int], found: Sequence[Sample]
) -> Run:
    options = [f"--sides {','.join(arguments.sides)}", f"--work {','.join(arguments.work)}"]
    options.append(f"--rounds {arguments.rounds}")
    place = recipe.relative_to(ROOT) if recipe.is_relative_to(ROOT) else recipe.name
    return Run(
        recipe=recipe.stem,
        compared=tuple(arguments.sides),
        command=f"python -m bench.sidebyside {shlex.quote(str(place))} {' '.join(options)}",
        machine=machine.described(),
        facts=dict(facts),
        samples=tuple(found),
    )


def _samples(
    recipe: Path, folder: Path, arguments: argparse.Namespace, facts: dict[str, int]
) -> Iterator[Sample]:
    name = recipe.stem
    planned = scheme(name)
    works = [work for work in WORKS if work in arguments.work]
    if not planned.project:
        works = [work for work in works if work != "line-changed"]
    progress = LineProgress(sys.stderr)
    seed = Store(arguments.seed.resolve()) if arguments.seed else None
    bases = Bases(Store(folder / "bases"), seed, folder, progress)
    variants = {"main": prepare(recipe, (), planned, folder / "recipes", bases)}
    steady = {"cold", "nothing-changed", "line-changed", "warm", "warm-first", "matrix"}
    changing = [work for work in works if work not in steady]
    for work in changing:
        variants[work] = prepare(recipe, (work,), planned, folder / "recipes", bases)
    six = planned.matrix if "matrix" in works else ()
    matrix = [prepare(recipe, changes, planned, folder / "recipes", bases) for changes in six]
    facts.update(known_bytes(variants, matrix))
    wheels = sum(wheel.size for wheel in variants["main"].lock.wheels)
    minutes = _estimate(wheels, works, arguments)
    _say(f"{name}: {wheels / 1e6:,.0f} MB of wheels; about {minutes:.0f} minutes")
    _require_disk(folder, wheels, arguments.sides, works)
    ends = time.monotonic() + 60 * arguments.minutes
    with contextlib.ExitStack() as stack:
        sides = [SIDES[side](folder / side, bases) for side in arguments.sides]
        for side in sides:
            stack.callback(side.stop)
        bench = Bench(
            recipe=name,
            folder=folder,
            variants=variants,
            matrix=matrix,
            imports=planned.imports,
            sides=sides,
        )
        for number in range(1, arguments.rounds + 1):
            if "limits" in arguments.work and time.monotonic() < ends:
                yield from limits.measure(name, variants["main"], folder / "limits", number)
            yield from _round(bench, works, number, arguments, ends)
        if "render" in arguments.work:
            for number in range(1, arguments.rounds + 1):
                yield from rendering.measure(name, MAIN, folder / "hpccm", bases.store, number)


def _round(
    bench: Bench,
    works: Sequence[str],
    number: int,
    arguments: argparse.Namespace,
    ends: float,
) -> Iterator[Sample]:
    """Do every kind of work once, on each side in turn."""
    if "cold" not in works and set(works) - {"matrix"} and time.monotonic() < ends:
        for side in bench.sides:  # what the others build on
            measure(bench, side, "cold", number, whole=False)
    # A consumer drops the page cache, and the matrix ends what runs: both come last, in this order.
    rest = [work for work in works if work != "matrix"]
    rest += [work for work in ("consumer", "matrix") if work in arguments.work]
    for work in rest:
        if work == "matrix" and number > arguments.matrix_rounds:
            continue
        if time.monotonic() > ends:
            _say(f"the time is up: no {work} in round {number}")
            continue
        for side in bench.sides:
            if work == "consumer":
                yield consumer.measure(bench.recipe, side, bench.variants["main"], bench.imports, number)
            elif work not in side.skipped:
                yield measure(bench, side, work, number, whole=work == "cold" and number == 1)


def _estimate(wheels: int, works: Sequence[str], arguments: argparse.Namespace) -> float:
    """Guess the minutes that a run takes."""
    size, seconds = wheels / 1e9, 120.0
    for side in arguments.sides:
        for work in works:
            full = _COLD[side] * size
            changed = _CHANGED[side] * size
            each = {"cold": full + 30, "nothing-changed": 5, "warm": full, "matrix": full + 5 * changed}
            each["warm-first"] = full
            if work in SIDES[side].skipped:
                continue
            rounds = min(arguments.rounds, arguments.matrix_rounds) if work == "matrix" else arguments.rounds
            seconds += rounds * (each.get(work, changed) + 5)
        if "consumer" in arguments.work:
            seconds += arguments.rounds * (15 + 40 * size)
    return seconds / 60


def _require_disk(folder: Path, wheels: int, sides: Sequence[str], works: Sequence[str]) -> None:
    """Refuse before the first minute, and not in the last, where the disk cannot hold all sides at once."""
    # An image of wheels unpacks to 1.7 times their size. Each side has it packed and unpacked, and packed in
    # its registry, where every change of one step stays as a whole; those that cache have the wheels too.
    changes = sum(work in {"other-nccl", "other-framework", "package-added", "other-base"} for work in works)
    times = {"plain": 4.7 + changes, "uv": 5.7 + changes, "rendered": 6.5 + changes, "imagebuilder": 4.0}
    # Besides, what is there for a time: the state that is being built, or a consumer's.
    need = int(wheels * (sum(times[side] for side in sides) + 3)) + 2_000_000_000 * len(sides)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise EnvironmentFault(
            f"{free / 1e9:.0f} GB are free, and this needs about {need / 1e9:.0f} GB",
            where=str(folder.parent),
            hint="name another disk with --work-folder, or fewer sides with --sides",
        )


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sidebyside", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    kinds = "\n".join(f"  {name:16} {what}" for name, what in WORKS.items())
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken [3]")
    parser.add_argument(
        "--matrix-rounds", type=int, default=1, help="of the six recipes, which take longest [1]"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing after so many for each recipe"
    )
    parser.add_argument("--sides", type=words(tuple(SIDES)), default=tuple(SIDES), help=",".join(SIDES))
    parser.add_argument(
        "--work",
        type=words((*WORKS, *EXTRAS)),
        default=(*WORKS, *EXTRAS),
        help=f"kinds of work, with commas between; also {', '.join(EXTRAS)}:\n{kinds}",
    )
    parser.add_argument("--seed", type=Path, metavar="STORE", help="a store that has the bases already")
    parser.add_argument("--work-folder", type=Path, metavar="DIR", help="on the disk that is measured")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="JSON; keeps those of others")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tables, as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
