"""The bench's own arithmetic: what its tables say is what its samples say."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cache, profiles
from bench.sidebyside import goals, limits, samples, tables, variants
from bench.sidebyside.meter import metered
from bench.sidebyside.samples import Run, Sample
from imagebuilder.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def sample(work: str, side: str, number: int = 1, **values: float) -> Sample:
    return Sample(recipe="small", work=work, side=side, round=number, values=values)


def run(*found: Sample, **facts: int) -> Run:
    return Run(
        recipe="small",
        compared=("plain", "imagebuilder"),
        command="python -m bench",
        machine={"cores": "2"},
        facts=facts,
        samples=found,
    )


def test_a_median_is_taken_of_each_value() -> None:
    found = run(
        sample("cold", "plain", 1, build=9.0, push=1.0),
        sample("cold", "plain", 2, build=1.0, push=2.0),
        sample("cold", "plain", 3, build=5.0, push=9.0),
        sample("cold", "uv", 1, build=100.0),
    )
    assert found.medians("cold", "plain") == {"build": 5.0, "push": 2.0}
    assert found.rounds("cold", "plain") == 3
    assert found.medians("warm", "plain") == {}


def test_samples_come_back_from_their_file(tmp_path: Path) -> None:
    first = run(sample("cold", "plain", build=1.0), distinct=7)
    samples.keep(first, tmp_path / "samples.json")
    again = run(sample("cold", "plain", build=2.0))
    other = dataclasses.replace(first, recipe="a")
    alone = dataclasses.replace(first, compared=("imagebuilder",))
    samples.keep(other, tmp_path / "samples.json")
    samples.keep(alone, tmp_path / "samples.json")
    assert samples.keep(again, tmp_path / "samples.json") == (other, again, alone)
    assert samples.read(tmp_path / "samples.json") == (other, again, alone)


def test_a_table_has_each_value_and_its_ratio_to_the_plain_side() -> None:
    page = tables.page(
        [
            run(
                sample("cold", "plain", build=40.0, push=10.0, pushed=2e9, packed=2e9),
                sample("cold", "imagebuilder", build=4.0, push=1.0, pushed=1e9, packed=1e9),
            )
        ]
    )
    assert "| plain | 40.0 s (1) | 10.0 s (1) | 2.0 GB (1) | 2.0 GB (1) | 50.0 s (1) |" in page
    assert "| imagebuilder | 4.0 s (0.1) | 1.0 s (0.1) | 1.0 GB (0.5) | 1.0 GB (0.5) | 5.0 s (0.1) |" in page
    assert "One round." in page
    assert "unpacked" not in page.split("### cold")[1]  # nobody measured it


def test_a_goal_is_met_only_where_the_figures_say_so() -> None:
    found = run(
        sample("cold", "plain", build=99.0, push=1.0, packed=1000.0),
        sample("cold", "imagebuilder", build=10.0, push=3.5, packed=1001.0),
        sample(limits.DOWNLOAD, "", seconds=10.0, bytes=1e9),
        sample("other-nccl", "plain", build=99.0, push=1.0),
        sample("other-nccl", "imagebuilder", build=1.0, push=1.0, pushed=102.0),
        sample("nothing-changed", "imagebuilder", build=0.4, push=0.1),
        **{"changed: other-nccl": 100},
    )
    said = {goal.goal.split(":")[0]: goal for goal in goals.reached(found)}
    cold = said["cold build + push at most 1.3 times downloading the same bytes alone"]
    assert (cold.met, cold.measured) == (False, "1.35: 13.5 s (10.0 + 3.5) / 10.0 s")
    assert cold.bound
    pushed = [goal for goal in goals.reached(found) if goal.goal.startswith("one pin changed")]
    assert [goal.met for goal in pushed] == [True, True]
    assert said["nothing changed"].met
    assert not said["packed size at most the plain image's"].met


def test_warm_work_is_held_against_the_cold_build_of_a_side_that_caches_nothing() -> None:
    found = run(
        sample("cold", "plain", build=90.0, push=10.0, packed=1.0),
        sample("warm-first", "imagebuilder", build=5.0, push=1.0),
    )
    assert "| imagebuilder | 5.0 s (0.0556) | 1.0 s (0.1) | 6.0 s (0.06) |" in tables.page([found])
    (goal,) = goals.reached(found)
    assert (goal.met, goal.measured) == (True, "18: 90.0 s / 5.0 s")


def test_there_is_no_goal_without_figures() -> None:
    assert goals.reached(run()) == ()


def test_the_meter_sees_the_memory_of_others_and_not_of_those_left_out(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; held = bytearray(b'1') * 60_000_000; time.sleep(30)"]
    with subprocess.Popen(words) as child:
        try:
            with metered(tmp_path) as with_it:
                wait_for(child.pid, 60_000_000)
            with metered(tmp_path, excluding=[child.pid]) as without:
                pass
        finally:
            child.kill()
    assert with_it.memory >= 60_000_000
    assert without.memory < 60_000_000
    assert with_it.seconds > 0


def wait_for(pid: int, held: int) -> None:
    """Wait until a process holds so many bytes, and for the meter's next look."""
    import time

    for _ in range(300):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") >= held:
            break
        time.sleep(0.05)
    time.sleep(0.5)


@pytest.mark.parametrize("name", ["cuda12-torch", "cpu-mpi", "cuda-jax"])
def test_what_is_changed_in_a_recipe_is_in_it(name: str) -> None:
    (source,) = [*ROOT.glob(f"recipes/{name}.yaml"), *ROOT.glob(f"bench/recipes/{name}.yaml")]
    planned = variants.scheme(name)
    text = source.read_text()
    for change in planned.changes:
        assert variants.changed(text, change, planned, source) != text
    assert {change for each in planned.matrix for change in each} <= set(planned.changes)


def test_a_change_that_nobody_described_is_refused() -> None:
    source = ROOT / "recipes" / "cpu-mpi.yaml"
    with pytest.raises(InputError, match="other-nccl"):
        variants.changed(source.read_text(), "other-nccl", variants.scheme("cpu-mpi"), source)


def test_stacks_that_differ_in_lines_only_are_one() -> None:
    folded = "main (a.py:1);work (b.py:2) 600\nmain (a.py:9);work (b.py:7) 399\nrare (c.py:1) 1\n"
    assert profiles.short(folded) == "main (a.py);work (b.py) 999\n"
    assert profiles.top(folded).splitlines()[0] == " 99.9%  main (a.py)"


def test_the_cache_s_table_is_in_order_and_its_log_is_read() -> None:
    rows = [
        cache.Sample(work=work, side=side, seconds=2.0, given=1000, received=2, pushed=3, changed=4)
        for work in ("other-nccl", "nothing")
        for side in ("imagebuilder", "plain")
    ]
    lines = cache.table(rows).splitlines()[2:]
    assert [line.split(" | ")[:2] for line in lines] == [
        ["| nothing changed", "plain"],
        ["| nothing changed", "imagebuilder"],
        ["| another NCCL", "plain"],
        ["| another NCCL", "imagebuilder"],
    ]
    assert lines[0].endswith("| 2.0 s | 1.0 kB | 2 B | 3 B | 4 B |")
    log = """127.0.0.1 - - [23/Nov/2026:04:03:56 +0000] "{}" {} "" "buildkit/v0.0-dev"\n"""
    said = [
        ("GET /v2/cache/blobs/sha256:fd0d HTTP/1.1", "200 1096"),
        ("GET /v2/cache/blobs/sha256:fd0d HTTP/1.1", "206 10"),
        ("GET /v2/cache/blobs/sha256:abcd HTTP/1.1", "404 99"),
        ("HEAD /v2/cache/manifests/latest HTTP/1.1", "200 1222"),
    ]
    assert cache.given("".join(log.format(*line) for line in said)) == 1106
