"""A sample of `make bench`: two sides, one round, a small recipe. Figures are looked at, not judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.store import Store
from tests.integration.conftest import Built

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 600.0


def test_two_sides_are_measured_and_their_table_says_what_the_samples_say(
    built: Built, store: Store, tmp_path: Path
) -> None:
    built(ROOT / "recipes" / "cpu-mpi.yaml")  # so that its Debian base is in the store
    samples, page = tmp_path / "samples.json", tmp_path / "results.md"
    command: list[str | Path] = [sys.executable, "-m", "bench.sidebyside", "recipes/cpu-mpi.yaml"]
    command += ["--rounds", "1", "--sides", "uv,imagebuilder", "--work", "cold", "--seed", store.root]
    command += ["--work-folder", tmp_path, "--samples", samples, "--out", page]
    process.run(command, timeout=_SECONDS, cwd=ROOT)
    (run,) = json.loads(samples.read_text())
    by_side = {sample["side"]: sample["values"] for sample in run["samples"]}
    assert set(by_side) == {"uv", "imagebuilder"}
    for values in by_side.values():
        # Everything was pushed to an empty registry, which also keeps a config and a manifest.
        assert values["pushed"] == values["stored"] > values["packed"] > 100e6
        assert values["unpacked"] > 2 * values["packed"]
        assert values["memory"] > 10e6
        assert values["build"] > 0 < values["push"]
    ours = by_side["imagebuilder"]
    assert f"| imagebuilder | {ours['build']:.1f} s | {ours['push']:.1f} s |" in page.read_text()
    # Engines, registries and stores are gone.
    assert {path.name for path in tmp_path.iterdir()} == {"samples.json", "results.md"}
