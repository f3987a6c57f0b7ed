"""A sample of `make fuzz`: the kept cases and some mutants of each target; and that its eyes are open."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.errors import ImagebuilderError, InputError
from tests.fuzz import worker
from tests.fuzz.mutation import Mutate, any_bytes, json_document, lines, tar_file, zip_file
from tests.fuzz.targets import TARGETS, Feed, Target

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "hostile"


@pytest.mark.slow
def test_a_sample_of_each_target() -> None:
    argv = [sys.executable, "-m", "tests.fuzz.worker", *TARGETS, "--seed", "6", "--count", "10"]
    result = process.run(argv, timeout=300, cwd=ROOT)
    rows = {row["target"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert rows.keys() == TARGETS.keys()
    assert {name: row["said"] for name, row in rows.items() if row["crashes"]} == {}
    assert [name for name, row in rows.items() if not row["accepted"]] == []
    assert [name for name, row in rows.items() if row["growth"] > 300 << 20] == []


def test_every_kept_case_belongs_to_a_target() -> None:
    assert {path.name for path in CASES.iterdir()} <= TARGETS.keys()
    assert all(path.stat().st_size < 300_000 for path in CASES.rglob("*"))


@pytest.mark.parametrize("mutate", [any_bytes, json_document, lines, tar_file, zip_file])
def test_mutants_follow_from_their_seed(mutate: Mutate) -> None:
    seed = b'{"a": [1, {"b": "c"}]}\nx: y\n'
    made = [[mutate(random.Random(n), seed, [seed]) for n in range(50)] for _ in range(2)]  # noqa: S311
    assert made[0] == made[1]
    assert len(set(made[0])) > 25


class _Escaping:
    """A target that does what none may."""

    def __init__(self, outside: Path) -> None:
        self.outside = outside

    def write(self, _data: bytes, _folder: Path) -> None:
        self.outside.write_text("x")

    def link(self, _data: bytes, folder: Path) -> None:
        (folder / "x").write_text("x")
        self.outside.hardlink_to(folder / "x")

    def fold(self, _data: bytes, _folder: Path) -> None:
        self.outside.mkdir()

    def command(self, _data: bytes, _folder: Path) -> None:
        process.run(["true"], timeout=10)

    def bug(self, data: bytes, _folder: Path) -> None:
        data[10**9]

    def control(self, _data: bytes, _folder: Path) -> None:
        raise InputError("\x1b[31m")

    def internal(self, _data: bytes, _folder: Path) -> None:
        raise ImagebuilderError("x")


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("write", "outside of its folder"),
        ("link", "outside of its folder"),
        ("fold", "outside of its folder"),
        ("command", "subprocess.Popen"),
        ("bug", "IndexError"),
        ("control", "control characters"),
        ("internal", "exit code 70"),
    ],
)
def test_what_no_target_may_do_is_seen(deed: str, words: str, tmp_path: Path) -> None:
    escaping = _Escaping(tmp_path / "outside")

    @contextmanager
    def ready(_folder: Path) -> Iterator[Feed]:
        yield Feed(seeds=(b"x",), run=getattr(escaping, deed))

    before = os.environ.get("TMPDIR")
    counts = worker.run(Target(name="escaping", ready=ready, mutate=any_bytes), 1, 1, tmp_path / "keep")
    assert counts.crashes == 1
    assert words in counts.said[0]
    assert not escaping.outside.exists()
    assert (tmp_path / "keep" / "escaping-1").read_bytes() == b"x"
    assert os.environ.get("TMPDIR") == before
