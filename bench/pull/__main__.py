"""What a node waits for: pulling an image, pulling its update, and the first step of training.

    python -m bench.pull recipes/cuda12-torch.yaml --out bench/pull.md

Each side builds the recipe and pushes it to a registry of its own on this machine, then does the same with
another NCCL, or with another change of `bench/recipes/changes.yaml`. Then nodes pull: each is an engine with
nothing in it, behind a link that counts bytes.

    plain    a Dockerfile: pip install --no-cache-dir -r requirements.txt
    uv       uv in a stage of its own, and COPY --link of the environment
    gzip     imagebuilder, `push`
    zstd     imagebuilder, `push --compression zstd`

All sides build first. Then nodes of one kind after another pull: in each round from one side after the other.
The registry has its blobs in memory when a pull begins, as if its disk were another host's, and all other
memory is there (bench/pull/memory.py). The page cache is dropped before the first step, so its files come
from the disk. Nothing else may run on this host meanwhile, and it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import words
from bench.pull.changed import blobs, changed_files
from bench.pull.link import GIGABIT, link
from bench.pull.memory import present
from bench.pull.nodes import NODES, Node
from bench.pull.reads import Reads, read_files
from bench.pull.table import page
from bench.sidebyside import machine
from bench.sidebyside.consumer import forget_files
from bench.sidebyside.sides import Embedded, Plain, Side, Uv
from bench.sidebyside.variants import Bases, Variant, prepare, scheme
from imagebuilder.core.progress import LineProgress
from imagebuilder.errors import ImagebuilderError
from imagebuilder.store import Store

LINKS: Mapping[str, float | None] = {"unlimited": None, "1 Gb/s": GIGABIT}
# One step of training on one process, and a collective.
STEPS = {
    "torch": "import torch, torch.distributed as d; d.init_process_group('gloo', "
    "init_method='tcp://127.0.0.1:29511', rank=0, world_size=1); m = torch.nn.Linear(64, 64); "
    "o = torch.optim.SGD(m.parameters(), 0.1); m(torch.ones(8, 64)).sum().backward(); "
    "d.all_reduce(m.weight.grad); o.step()",
    "jax": "import jax; w = jax.numpy.ones((64, 64)); w - 0.1 * jax.grad(lambda w: (w * w).sum())(w)",
    "numpy": "import numpy; numpy.ones((64, 64)) @ numpy.ones(64)",
}


class UvLink(Uv):
    """uv in a stage of its own; the image is the base and one layer that does not depend on it."""

    name = "uv"

    def dockerfile(self, variant: Variant) -> str:
        made = super().dockerfile(variant).replace("\n", " AS made\n", 1)
        return f"{made}FROM {variant.base.reference}\nCOPY --link --from=made /opt/venv /opt/venv\n"


class Gzip(Embedded):
    name = "gzip"


class Zstd(Embedded):
    name = "zstd"
    push_options = ("--compression", "zstd")


SIDES: dict[str, type[Side]] = {side.name: side for side in (Plain, UvLink, Gzip, Zstd)}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One figure: of which round, recipe and side, what it is, and its unit."""

    recipe: str
    side: str
    what: str
    value: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure of one recipe."""

    recipe: str
    folder: Path
    variants: Mapping[str, Variant]
    imports: str
    arguments: argparse.Namespace

    def sample(self, side: Side, what: str, value: float, unit: str) -> Sample:
        return Sample(recipe=self.recipe, side=side.name, what=what, value=value, unit=unit)


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    samples: list[Sample] = []
    reads: dict[str, Reads] = {}
    try:
        for recipe in arguments.recipes:
            for found in _measured(recipe.resolve(), arguments):
                if isinstance(found, Reads):
                    reads[recipe.stem] = found
                    continue
                samples.append(found)
                _say(f"{found.recipe} {found.side}: {found.what}: {found.value:,.1f} {found.unit}")
                if arguments.out:  # a run that is cut off keeps what it has
                    arguments.out.write_text(_page(samples, reads, arguments), encoding="utf-8")
    except ImagebuilderError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(_page(samples, reads, arguments))
    return 0


def _page(samples: Sequence[Sample], reads: Mapping[str, Reads], arguments: argparse.Namespace) -> str:
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for sample in samples:
        same = [one.value for one in samples if _of(one) == _of(sample)]
        row = figures.setdefault(sample.recipe, {}).setdefault(_row(sample), {})
        row[sample.side] = statistics.median(same)
    recipes = " ".join(str(path) for path in arguments.recipes)
    options = f"--rounds {arguments.rounds} --sides {','.join(arguments.sides)}"
    options += f" --nodes {','.join(arguments.nodes)}"
    return page(figures, reads, f"python -m bench.pull {recipes} {options}", machine.described())


def _of(sample: Sample) -> tuple[str, str, str]:
    return sample.recipe, sample.side, _row(sample)


def _row(sample: Sample) -> str:
    return f"{sample.what}, {sample.unit}"


def _measured(recipe: Path, arguments: argparse.Namespace) -> Iterator[Sample | Reads]:
    folder = Path(tempfile.mkdtemp(prefix="bench-pull-", dir=arguments.work_folder))
    try:
        planned = scheme(recipe.stem)
        seed = Store(arguments.seed.resolve()) if arguments.seed else None
        bases = Bases(Store(folder / "bases"), seed, folder, LineProgress(sys.stderr))
        changes = ((), (arguments.update,)) if arguments.update in planned.changes else ((),)
        variants = [prepare(recipe, change, planned, folder / "recipes", bases) for change in changes]
        task = Task(
            recipe=recipe.stem,
            folder=folder,
            variants={variant.name: variant for variant in variants},
            imports=planned.imports,
            arguments=arguments,
        )
        sides = [SIDES[name](folder / name, bases) for name in arguments.sides]
        try:
            for side in sides:
                yield from _built(task, side)
            for name in arguments.nodes:
                for speed, rate in LINKS.items():
                    if rate is None or name in arguments.slow_nodes:
                        for _ in range(arguments.rounds):
                            yield from _round(task, sides, name, speed)
            if not arguments.no_reads:
                yield _reads(task, sides[-1])
        finally:
            for side in sides:
                side.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _built(task: Task, side: Side) -> Iterator[Sample]:
    """Build and push every variant with a side; afterwards it has its registry and no more."""
    registries = task.arguments.registries
    kept = registries.resolve() / task.recipe / side.name if registries else None
    if kept and kept.exists():
        side.reset()
        _link_all(kept, side.registry.folder / "data")
        side.end_building()
        return
    for _ in range(task.arguments.builds):
        side.reset()
        for variant in task.variants.values():
            before = blobs(side.registry.folder)
            with _timed() as taken:
                side.build(variant)
                side.push(variant)
            work = "all new" if variant.name == "main" else variant.name
            yield task.sample(side, f"build and push, {work}", taken(), "s")
            if before and isinstance(side, Gzip):
                files, tables = changed_files(before, blobs(side.registry.folder) - before)
                yield task.sample(side, f"update, {work}: changed files", files / 1e6, "MB")
                yield task.sample(side, f"update, {work}: their tables of contents", tables / 1e6, "MB")
            side.tidy(variant)
        side.end_building()
    if kept:
        _link_all(side.registry.folder / "data", kept)


def _link_all(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)


def _round(task: Task, sides: Sequence[Side], name: str, speed: str) -> Iterator[Sample]:
    """Pull from every side, each time into an empty node."""
    for side in sides:
        node = NODES[name](task.folder / "node")
        try:
            for what, value, unit in _pulled(task, side, node, LINKS[speed]):
                yield task.sample(side, f"{name}, {speed}: {what}", value, unit)
        finally:
            node.stop()


def _reads(task: Task, side: Side) -> Reads:
    """See which files the first step reads, on a node that has the image's layers."""
    image = side.name_of(task.variants["main"])
    node = NODES["containerd"](task.folder / "node")
    try:
        node.renew()
        node.pull(image)
        return read_files(node.files(), lambda: node.python(image, STEPS[task.imports]))
    finally:
        node.stop()


def _pulled(task: Task, side: Side, node: Node, rate: float | None) -> Iterator[tuple[str, float, str]]:
    """Pull into an empty node, run the first step, and pull the update."""
    node.renew()
    forget_files()
    _read_blobs(side.registry.folder)
    with link(side.registry.host, rate) as way:
        main = f"{way.host}/{_tagged(side, task.variants['main'])}"
        with present(), _timed() as pulling:
            node.pull(main)
        seconds, received = pulling(), way.received
        yield "first pull", seconds, "s"
        yield "first pull", received / 1e6, "MB"
        forget_files()
        with _timed() as stepping:
            node.python(main, STEPS[task.imports])
        yield "first step of training", stepping(), "s"
        yield "first pull and first step", seconds + stepping(), "s"
        for variant in list(task.variants.values())[1:]:
            with present(), _timed() as updating:
                node.pull(f"{way.host}/{_tagged(side, variant)}")
            yield f"update, {variant.name}", updating(), "s"
            yield f"update, {variant.name}", (way.received - received) / 1e6, "MB"


def _read_blobs(folder: Path) -> None:
    buffer = memoryview(bytearray(1 << 20))
    for path in folder.rglob("data"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _tagged(side: Side, variant: Variant) -> str:
    """Return an image's name without the registry's host."""
    return side.name_of(variant).partition("/")[2]


@contextlib.contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    ended: list[float] = []
    yield lambda: (ended[0] if ended else time.monotonic()) - started
    ended.append(time.monotonic())


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pull", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken [3]")
    parser.add_argument("--builds", type=int, default=1, help="how often each side builds [1]")
    parser.add_argument("--sides", type=words(SIDES), default=tuple(SIDES), help=",".join(SIDES))
    parser.add_argument("--nodes", type=words(NODES), default=tuple(NODES), help=",".join(NODES))
    parser.add_argument(
        "--slow-nodes", type=words(NODES), default=("containerd",), help="also over 1 Gb/s [containerd]"
    )
    parser.add_argument("--update", default="other-nccl", metavar="CHANGE", help="or none [other-nccl]")
    parser.add_argument(
        "--registries", type=Path, metavar="DIR", help="keep what is pushed; what is there is not built again"
    )
    parser.add_argument("--no-reads", action="store_true", help="do not list what the first step reads")
    parser.add_argument("--seed", type=Path, metavar="STORE", help="a store that has the Debian base already")
    parser.add_argument("--work-folder", type=Path, metavar="DIR", help="on the disk that is measured")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tables, as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
