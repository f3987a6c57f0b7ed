"""Recipes built by both engines, one after the other: sizes, seconds, and every path compared.

    python -m bench.engines recipes/cpu-mpi.yaml recipes/cuda12-torch.yaml --out bench/engines.md

Fetching is timed apart: what a recipe needs is fetched first, and read once, so that both engines find it in
memory as far as it fits. Each engine then builds in a store of its own that holds these downloads and
nothing else, the docker engine with BuildKit's cache emptied before: it belongs on a host where nobody else
builds with the same builder. A recipe takes as much room as its downloads and twice its image, and leaves
nothing. Ends with 1 where the images differ in anything that tests/support/sameness.py does not allow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from imagebuilder import lock
from imagebuilder.process import run
from imagebuilder.progress import human
from imagebuilder.store import ImageRecord, Store
from tests.support import sameness
from tests.support.sameness import Side

ROOT = Path(__file__).resolve().parent.parent
_HOURS = 3 * 3600.0
_CHUNK = 1 << 20
_CAPTION = """\
# Both engines, recipe by recipe

Made by `python -m bench.engines` in one run; bench/engines.py says how each side is measured. Seconds are
those of a build with all downloads in the store and nothing else: every package installed, every wheel made
a layer. The docker engine's include the base, which is made from the lock's packages, and handing its `os`
stage over as a tar, which stays one layer where the embedded engine makes several. "Size" is what a push
sends to an empty registry, "unpacked" the tars inside. "Load" is what kept the machine busy in the minute
before (loadavg): above 0.5 a core the seconds say little.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One image: who made it, the record of its bytes, seconds, and how busy the machine was before."""

    engine: str
    image: ImageRecord
    seconds: float
    load: float

    @property
    def unpacked(self) -> int:
        return sum(layer.record.unpacked for layer in self.image.layers)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One recipe: what it fetched and in how many seconds, both images, and how they compare."""

    name: str
    fetched: int
    seconds: float
    rows: tuple[Row, Row]
    paths: int
    allowed: tuple[str, ...]
    wrong: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", type=Path, nargs="+", help="recipes with locks")
    parser.add_argument(
        "--downloads", type=Path, help="a store whose downloads may be used, and are added to"
    )
    parser.add_argument("--work", type=Path, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="engines-", dir=arguments.work) as name:
        for recipe in arguments.recipes:
            outcomes.append(measured(recipe, arguments.downloads or Path(name) / "fetched", Path(name)))
            text = f"{_CAPTION}\n{table(outcomes)}"
            # After each, for the next may take half an hour.
            if arguments.out:
                arguments.out.write_text(text, encoding="utf-8")
    print(text)
    wrong = [f"{outcome.name}: {line}" for outcome in outcomes for line in outcome.wrong]
    print("\n".join(wrong))
    return 1 if wrong else 0


def measured(recipe: Path, downloads: Path, folder: Path) -> Outcome:
    """Fetch for a recipe, build it with both engines, compare, and remove all but the downloads."""
    began = monotonic()
    said = json.loads(_imagebuilder("fetch", recipe, "--store", downloads, "--json"))
    seconds = monotonic() - began
    _read_once(recipe, Store(downloads))
    place = folder / recipe.stem
    try:
        embedded = _built(recipe, _store(place / "embedded", downloads), "embedded")
        _prune()
        docker = _built(recipe, _store(place / "docker", downloads), "docker")
        sides = [_side(row.image, Store(place / row.engine)) for row in (embedded, docker)]
        wrong, allowed = sameness.differences(*sides, pure=False)
        paths = len(sides[0].items)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        _prune()
    return Outcome(
        name=recipe.stem,
        fetched=sum(row["fetched_bytes"] for row in said["recipes"]),
        seconds=seconds,
        rows=(embedded, docker),
        paths=paths,
        allowed=tuple(sorted(allowed)),
        wrong=tuple(wrong),
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Write both tables: what was built, and what is not the same in both."""
    lines = [
        "| recipe | engine | size | unpacked | layers | build | load | docker / embedded |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        *(line for outcome in outcomes for line in _rows(outcome)),
        "",
        "| recipe | fetched before | paths compared | differ | rules for what may | same layers |",
        "|---|--:|--:|--:|--:|--:|",
        *(_comparison(outcome) for outcome in outcomes),
    ]
    if used := sorted({paths for outcome in outcomes for paths in outcome.allowed}):
        reasons = {rule.paths: rule.reason for rule in sameness.ALLOWED}
        lines += ["", "What differs and may, as tests/support/sameness.py has it:", ""]
        lines += [f"- `{paths}`: {reasons[paths]}" for paths in used]
    return "\n".join([*lines, ""])


def _rows(outcome: Outcome) -> Iterator[str]:
    first = outcome.rows[0]
    for row in outcome.rows:
        ratio = "" if row is first else f"{row.seconds / first.seconds:.1f}x"
        yield (
            f"| {outcome.name} | {row.engine} | {human(row.image.size)} | {human(row.unpacked)} "
            f"| {len(row.image.layers)} | {row.seconds:.1f} s | {row.load:.1f} | {ratio} |"
        )


def _comparison(outcome: Outcome) -> str:
    ours, theirs = ([layer.record.digest for layer in row.image.layers] for row in outcome.rows)
    same = len(set(ours) & set(theirs))
    fetched = f"{human(outcome.fetched)} in {outcome.seconds:.0f} s" if outcome.fetched else "nothing"
    return (
        f"| {outcome.name} | {fetched} | {outcome.paths} | {len(outcome.wrong)} | {len(outcome.allowed)} "
        f"| {same} of {len(ours)} |"
    )


def _built(recipe: Path, store: Store, engine: str) -> Row:
    words = ("--engine", engine, "--store", store.root, "--progress", "lines", "--json")
    load = os.getloadavg()[0]
    said = json.loads(_imagebuilder("build", recipe, *words))
    image = store.image(str(said["name"]))
    if image is None:
        raise SystemExit(f"{recipe}: the {engine} engine left no image in {store.root}")
    return Row(engine=engine, image=image, seconds=float(said["seconds"]), load=load)


def _store(root: Path, downloads: Path) -> Store:
    """Make an empty store that shares the downloads of another one."""
    root.mkdir(parents=True)
    (root / "downloads").symlink_to((downloads / "downloads").resolve())
    return Store(root)


def _side(image: ImageRecord, store: Store) -> Side:
    return Side(blobs=[store.blob(layer.record.digest) for layer in image.layers])


def _read_once(recipe: Path, store: Store) -> None:
    """Read every file that the lock names, so that the engine that builds first has no colder disk."""
    for package in lock.read(lock.path_for(recipe)).files:
        with store.download(package.sha256).open("rb") as file:
            while file.read(_CHUNK):
                pass


def _prune() -> None:
    run(["docker", "buildx", "prune", "--force"], timeout=_HOURS)


def _imagebuilder(*words: str | Path) -> str:
    program = [ROOT / ".venv" / "bin" / "imagebuilder"]
    return run([*program, *words], timeout=_HOURS).stdout


if __name__ == "__main__":
    raise SystemExit(main())
