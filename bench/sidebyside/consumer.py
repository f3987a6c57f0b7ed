"""The consumer's side: an empty engine pulls an image, and a container imports for the first time."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from bench.sidebyside import samples
from bench.sidebyside.engine import Engine
from bench.sidebyside.meter import metered
from bench.sidebyside.samples import Sample
from bench.sidebyside.sides import Side
from bench.sidebyside.variants import Variant

_DROP = Path("/proc/sys/vm/drop_caches")


def measure(recipe: str, side: Side, variant: Variant, imports: str, number: int) -> Sample:
    """Pull what a side pushed, and import a module in a fresh container, twice: the files come from the disk
    the first time, and from memory the second.
    """
    engine = Engine(side.folder / "consumer")
    try:
        engine.renew()
        name = side.name_of(variant)
        with metered(side.folder) as pulling:
            engine.docker("pull", "--quiet", name)
        forget_files()
        first = _import(engine, name, imports)
        again = _import(engine, name, imports)
    finally:
        engine.stop()
    values = {samples.PULL: pulling.seconds, samples.IMPORT: first, "import again": again}
    if pulling.written is not None:
        values[samples.WRITTEN] = pulling.written
    return Sample(
        recipe=recipe, work="consumer", side=side.name, round=number, values=values, note=f"import {imports}"
    )


def forget_files() -> None:
    """Drop the page cache, where this host lets us (Documentation/admin-guide/sysctl/vm.rst)."""
    os.sync()
    with contextlib.suppress(OSError):
        _DROP.write_text("3")


def _import(engine: Engine, image: str, module: str) -> float:
    started = time.monotonic()
    words = ("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", f"import {module}")
    engine.docker(*words)
    return time.monotonic() - started
