"""Comparisons of checkpoints without torch: what the script is asked, and what is printed of its answer."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.smoke import checkpoints
from imagebuilder.smoke.checkpoints import Comparison, Incomparable, lines

WEIGHT: dict[str, Any] = {
    "name": "0.weight",
    "kind": "parameter",
    "what": "numbers",
    "first": "float32 [4, 9]",
    "other": "float32 [4, 9]",
    "count": 2,
    "of": 36,
    "max_abs": 0.5,
    "relative": 0.25,
    "not_finite": 1,
    "index": [3, 2],
    "values": ["2", "2.5"],
}
DTYPE = {
    "name": "3.weight",
    "kind": "parameter",
    "what": "dtype",
    "first": "float32 [3]",
    "other": "float16 [3]",
}
MISSING = {"name": "3.bias", "kind": "parameter", "what": "missing", "first": "float32 [3]", "other": None}
EXTRA = {"name": "epoch", "kind": "value", "what": "extra", "first": None, "other": "3"}
KINDS = ("parameter", "buffer", "optimizer", "value")


def comparison(*differences: dict[str, Any]) -> dict[str, Any]:
    """What the script says of two files that have three equal buffers besides."""
    counts = {
        kind: {"equal": 3 if kind == "buffer" else 0, "differ": [d["kind"] for d in differences].count(kind)}
        for kind in KINDS
    }
    return {"counts": counts, "differences": list(differences)}


class World:
    """Two files, and a stand-in for a Python with torch that notes its arguments and says what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [folder / "one.pt", folder / "other.pt"]
        for path in self.files:
            path.write_bytes(b"x")
        self.python = folder / "python"

    def says(self, answer: object, *, code: int = 0, error: str = "") -> None:
        said = answer if isinstance(answer, str) else json.dumps(answer)
        text = (
            f'printf "%s\\n" "$@" >{self.folder}/arguments\n'
            f"printf '%s\\n' {shlex.quote(error)} >&2\nprintf '%s\\n' {shlex.quote(said)}\nexit {code}\n"
        )
        self.python.write_text(f"#!/bin/sh\n{text}")
        self.python.chmod(0o755)

    def run(self, *words: str | Path) -> tuple[int, str]:
        argv = ["compare-checkpoints", *self.files, "--python", self.python, *words]
        result = CliRunner().invoke(app, [str(word) for word in argv])
        if isinstance(result.exception, Incomparable):
            return result.exception.exit_code, str(result.exception)
        return result.exit_code, result.stdout

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_equal_checkpoints_are_0(world: World) -> None:
    world.says({"comparisons": [comparison()]})
    code, text = world.run()
    assert (code, text.splitlines()) == (
        0,
        [f"{world.files[0]} and {world.files[1]}: equal", "  buffers          3 equal, 0 differ"],
    )


def test_checkpoints_that_differ_are_1_with_a_line_for_each_difference(world: World) -> None:
    world.says({"comparisons": [comparison(WEIGHT, DTYPE, MISSING, EXTRA)]})
    measured = "2 of 36 differ, max abs 0.5, relative 0.25, 1 not finite"
    code, text = world.run()
    assert (code, text.splitlines()) == (
        1,
        [
            f"{world.files[0]} and {world.files[1]}: DIFFER",
            "  parameters       0 equal, 3 differ",
            "  buffers          3 equal, 0 differ",
            "  other values     0 equal, 1 differ",
            f"parameter  0.weight  float32 [4, 9]  {measured}, first at [3, 2]: 2 against 2.5",
            "parameter  3.weight  dtype: float32 [3] against float16 [3]",
            "parameter  3.bias  only in the first: float32 [3]",
            "value      epoch  not in the first: 3",
        ],
    )


def test_the_text_stops_after_as_many_as_asked_for(world: World) -> None:
    world.says({"comparisons": [comparison(WEIGHT, DTYPE, MISSING)]})
    assert "parameter  ... and 2 more, see --most" in world.run("--most", "1")[1].splitlines()


def test_json_has_each_file_against_the_first(world: World) -> None:
    third = world.folder / "third.pt"
    third.write_bytes(b"x")
    world.says({"comparisons": [comparison(), comparison(WEIGHT, EXTRA)]})
    code, text = world.run(third, "--json")
    assert code == 1
    first, second = json.loads(text)["result"]["pairs"]
    assert [first[key] for key in ("first", "other", "equal")] == [*map(str, world.files), True]
    assert first["comparison"] == comparison()
    assert [second[key] for key in ("other", "equal")] == [str(third), False]
    told = second["comparison"]["differences"]
    for row, given in zip(told, (WEIGHT, EXTRA), strict=True):
        assert row.items() >= given.items()


def test_options_reach_the_script_as_they_are(world: World) -> None:
    world.says({"comparisons": [comparison()]})
    options = ("--atol", "1e-3", "--rtol", "0.5", "--only", "buffer", "--only", "value", "--buffer", "-x.*")
    assert world.run(*options)[0] == 0
    script, *rest = world.arguments
    assert script.endswith("smoke/payload/compare.py")
    assert rest[:5] == ["--atol=0.001", "--rtol=0.5", "--only=buffer", "--only=value", "--buffer=-x.*"]
    assert rest[5:] == ["--memory", str((8 << 30) + 6), "--", *map(str, world.files)]


@pytest.mark.parametrize("options", [("--atol", "nan"), ("--rtol", "-1"), ("--only", "weights")])
def test_options_that_cannot_be_are_2(world: World, options: tuple[str, ...]) -> None:
    world.says({"comparisons": [comparison()]})
    assert world.run(*options)[0] == 2


def test_one_checkpoint_alone_cannot_be_compared(world: World) -> None:
    world.files.pop()
    assert world.run() == (2, "imagebuilder compare-checkpoints: give at least two checkpoints")


def test_an_image_and_a_python_exclude_each_other(world: World) -> None:
    assert world.run("--image", "demo") == (2, "--python: give --image or --python, not both")


def test_without_torch_both_ways_on_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Incomparable, match=r"--image RECIPE.*--python PATH"):
        checkpoints.compare_here(world.files, checkpoints.CompareRules(), None)


def test_an_image_that_nobody_has_is_2(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{world.folder}/absent.sock")
    argv = ["compare-checkpoints", *world.files, "--image", "demo", "--store", world.folder / "store"]
    result = CliRunner().invoke(app, [str(word) for word in argv])
    assert isinstance(result.exception, Incomparable)
    assert "no container engine answers" in str(result.exception)


def test_an_error_names_the_file_that_it_is_about(world: World) -> None:
    error = "names `os.\x1b[31msystem`, which torch does not load as weights"
    world.says({"error": error, "hint": "save a state", "file": 1})
    code, text = world.run()
    assert code == 2
    assert text == (
        f"{world.files[1]}: names `os.\\x1b[31msystem`, which torch does not load as weights\n"
        "  -> save a state"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Segmentation fault",
        {"comparisons": [{"counts": {}, "differences": [{**WEIGHT, "max_abs": "much"}]}]},
        {"comparisons": [comparison({**WEIGHT, "kind": "weights"})]},
        {"comparisons": [comparison(WEIGHT)], "more": 1},
        "[" * 100_000,
    ],
)
def test_what_is_no_answer_is_2_with_the_last_words_of_the_script(world: World, answer: object) -> None:
    world.says(answer, code=139, error="RuntimeError: a bad day\x1b[0m")
    code, text = world.run()
    assert code == 2
    assert (
        f"the script gave no answer: {world.python} ended with 139: RuntimeError: a bad day\\x1b[0m" in text
    )


@pytest.mark.parametrize("answer", [{"comparisons": []}, {"comparisons": [comparison()] * 2}])
def test_a_comparison_for_each_file_or_none(world: World, answer: object) -> None:
    world.says(answer)
    assert world.run()[0] == 2


def test_a_script_that_does_not_end_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.python.write_text("#!/bin/sh\nsleep 60\n")
    world.python.chmod(0o755)
    limits = checkpoints._Limits(memory=1 << 30, seconds=0.2)
    monkeypatch.setattr(checkpoints, "_limits", lambda _: limits)
    code, text = world.run()
    assert (code, text.endswith("the comparison did not end within 0 s")) == (2, True)


def test_files_that_cannot_be_read_are_2_before_anything_runs(world: World) -> None:
    world.says({"comparisons": [comparison()]})
    pipe = world.folder / "pipe"
    os.mkfifo(pipe)
    absent = world.folder / "absent.pt"
    for path, words in ((absent, "cannot be read: No such file or directory"), (pipe, "is not a file")):
        world.files[1] = path
        assert world.run() == (2, f"{path}: {words}")
    world.files[1] = world.folder
    assert world.run() == (2, f"{world.folder}: is not a file")
    assert not (world.folder / "arguments").exists()


def test_names_do_not_act_on_the_terminal() -> None:
    result = Comparison.model_validate_json(json.dumps(comparison({**MISSING, "name": "\x1b[31mred\n"})))
    text = lines((Path("a"), Path("b")), result, 5)[-1]
    assert text == "parameter  \\x1b[31mred\\n  only in the first: float32 [3]"
