"""How `check`, `plan`, `lock` and a build with nothing to do grow with the number of recipes.

    python -m bench.growth RECIPE --store STORE [--out bench/growth.md]

All recipes are copies of one recipe and its lock, so a thousand of them are a thousand times the same work.
The image must be in the store (`imagebuilder build RECIPE`). The figures are seconds and peak memory of whole
processes. In rows with "one process", one process handles all recipes, as `check` does. The other rows run
one command for each recipe, one after the other. `lock` asks archive and index again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_COUNTS = (1, 10, 100, 1000)
# What is one process a recipe grows by that process; so many show it.
_PROCESSES = 10
# What `plan` and `build` do with each recipe.
_PLAN = """\
import sys
from pathlib import Path
from imagebuilder.workflow import read_plan
for recipe in sys.argv[2:]:
    read_plan(Path(recipe))
"""
_BUILD = """\
import sys
from pathlib import Path
from imagebuilder.engines import embedded
from imagebuilder.core.progress import LineProgress
from imagebuilder.host.site import detect
from imagebuilder.store import Store
from imagebuilder.workflow import read_plan
store, site, progress = Store(Path(sys.argv[1])), detect(), LineProgress(open("/dev/null", "w"))
for recipe in sys.argv[2:]:
    lock, plan = read_plan(Path(recipe))
    context = embedded.BuildContext(lock=lock, store=store, site=site, progress=progress)
    assert embedded.build(plan, context).made == 0
"""
PROGRAM = Path(sys.executable).parent / "imagebuilder"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Wall seconds of a command, and the most memory it held, in bytes."""

    seconds: float
    memory: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        recipes = copies(arguments.recipe, Path(name), max(_COUNTS))
        cost([PROGRAM, "check", recipes[0]])  # files into the page cache
        rows = [
            row("check, one process", count, cost([PROGRAM, "check", *recipes[:count]])) for count in _COUNTS
        ]
        for title, program in (("plan", _PLAN), ("build, nothing to do", _BUILD)):
            command = [sys.executable, "-c", program, arguments.store]
            rows += [
                row(f"{title}, one process", count, cost([*command, *recipes[:count]])) for count in _COUNTS
            ]
        for title, words in (
            ("plan", ("plan",)),
            ("build, nothing to do", ("build", "--store", arguments.store, "--progress", "lines")),
            ("lock, nothing to do", ("lock", "--store", arguments.store)),
        ):
            single = [cost([PROGRAM, *words, recipe]) for recipe in recipes[:_PROCESSES]]
            for count in (1, _PROCESSES):
                seconds = sum(each.seconds for each in single[:count])
                rows.append(row(title, count, Cost(seconds=seconds, memory=max(c.memory for c in single))))
    head = "| what | recipes | s | ms a recipe | peak MB |\n| --- | --: | --: | --: | --: |\n"
    table = f"# Growth\n\n{__doc__.split(chr(10) * 2)[2].strip()}\n\n{head}{''.join(rows)}"
    print(table)
    if arguments.out:
        arguments.out.write_text(table, encoding="utf-8")
    return 0


def copies(recipe: Path, folder: Path, count: int) -> list[Path]:
    for number in range(count):
        shutil.copy(recipe, folder / f"recipe{number:04}.yaml")
        shutil.copy(recipe.with_suffix(".lock"), folder / f"recipe{number:04}.lock")
    return sorted(folder.glob("*.yaml"))


def cost(command: Sequence[str | Path]) -> Cost:
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[1]} ended with {child.returncode}")
    return Cost(seconds=time.monotonic() - started, memory=usage.ru_maxrss * 1024)


def row(title: str, count: int, spent: Cost) -> str:
    each = spent.seconds / count * 1000
    return f"| {title} | {count} | {spent.seconds:.2f} | {each:.0f} | {spent.memory / 1e6:.0f} |\n"


if __name__ == "__main__":
    sys.exit(main())
