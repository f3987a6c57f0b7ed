"""One target under atheris (libFuzzer): inputs that reach new code are kept, and mutated further.

    python -m tests.fuzz.engine TARGET --seconds 60 --corpus FOLDER --keep FOLDER

Half of the mutations are libFuzzer's own, the other half those of `mutation.py` and `lockedits.py`, which
know the formats. `worker.py` judges each input, and this prints the same line of JSON. What counts as reached
is bytecode of imagebuilder. The corpus folder keeps what was found for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import atheris

# While imagebuilder is loaded, atheris puts its counters into the bytecode; also for what is loaded late, at
# the first inputs.
with atheris.instrument_imports(include=["imagebuilder"]):
    from tests.fuzz import worker
    from tests.fuzz.targets import TARGETS, Target

# No alarm and no limit of memory of libFuzzer's own: worker.py has both.
_FLAGS = ("-timeout=0", "-rss_limit_mb=0")
_OWN = 0.5
# Longer inputs take most of the time and reach nothing new; the unit tests have files of gigabytes.
_LARGEST = 1 << 18


def fuzz(target: Target, given: argparse.Namespace) -> None:
    """Feed a target until the time is over; then print what came of it, and end the process."""
    stack = contextlib.ExitStack()
    with atheris.instrument_imports(include=["imagebuilder"]):
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagebuilder-fuzz-"))).resolve()
        feed = stack.enter_context(target.ready(root))
        (root / "tmp").mkdir()
        tempfile.tempdir = str(root / "tmp")
        seeds = [*feed.seeds, *worker.corpus(target.name)]
        counts, watch, size = worker.Counts(target=target.name), worker.Watch(target, root), worker.peak()
        given.corpus.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(seeds):
            (given.corpus / f"seed-{number}").write_bytes(data)
            worker.one(counts, watch, feed, data, root / "in", given.keep)
    began = time.monotonic()

    def run(data: bytes) -> None:
        if time.monotonic() - began > given.seconds:
            counts.growth, counts.seconds = max(worker.peak() - size, 0), time.monotonic() - began
            sys.stdout.write(json.dumps(dataclasses.asdict(counts)) + "\n")
            sys.stdout.flush()
            stack.close()
            # libFuzzer itself would end only after a number of inputs.
            os._exit(0)
        if data or not target.exact:
            worker.one(counts, watch, feed, data, root / "in", given.keep)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311 repeatable test data
        if not target.exact and rng.random() > _OWN:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        try:
            made = target.mutate(rng, data, seeds)
        except Exception:  # noqa: BLE001  (the mutators know good input, and this one is damaged already)
            made = target.mutate(rng, rng.choice(seeds), seeds)
        return made if len(made) <= most else data

    words = [sys.argv[0], str(given.corpus), f"-seed={given.seed}", f"-max_len={_LARGEST}", *_FLAGS]
    atheris.Setup(words, run, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    """Fuzz the target that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    worker.prepare()
    fuzz(TARGETS[given.target], given)


if __name__ == "__main__":
    main()
