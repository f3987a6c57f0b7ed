"""The user's own pytest files as a check: run here for real, on nodes that are this machine's shell."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagebuilder import workflow
from imagebuilder.core import labels as label_names
from imagebuilder.errors import InputError
from imagebuilder.layers import project
from imagebuilder.smoke.checks import own_tests
from imagebuilder.smoke.checks.own_tests import CHECK, RanTest
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import CheckFailed, Passed, Session
from imagebuilder.smoke.target import Promise, SmokeOptions, SmokeTarget, from_labels
from tests.support.recipes import SHIPPED, like_shipped

GOOD = "def test_name(host):\n    assert host.check_output('echo hello') == 'hello'\n"
LABELS = {
    label_names.LOCK: "a" * 64,
    label_names.SSH_PORT: "22",
    label_names.SSH_USER: "root",
    f"{label_names.PIN}torch": "2.10.0",
}


class Machine:
    """Nodes that are this machine; `asked` has what was run on which."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def run(self, index: int, argv: Sequence[str], *, timeout: float) -> Any:
        self.asked.append((index, argv[-1]))
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
        return SimpleNamespace(code=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "image"
    place.mkdir()
    return place


def session(machine: Machine, folder: Path | None, *, wanted: str = "", patience: float = 1.0) -> Session:
    names = [SimpleNamespace(name=f"node{index}") for index in range(2)]
    target = SmokeTarget(reference="x", recipe="x", lock="", pins=(), tests=wanted)
    options = SmokeOptions(tests=folder, patience=patience)
    parts = {"options": options, "target": target, "nodes": names, "nnodes": 2, "run": machine.run}
    return cast("Session", SimpleNamespace(**parts))


def passed(machine: Machine, folder: Path, **how: Any) -> Passed:
    return own_tests.run(session(machine, folder, **how))


def refused(machine: Machine, folder: Path, **how: Any) -> tuple[Finding, ...]:
    with pytest.raises(CheckFailed) as caught:
        own_tests.run(session(machine, folder, **how))
    return caught.value.findings


def test_a_test_runs_on_every_node_and_stands_in_the_report(machine: Machine, folder: Path) -> None:
    more = "def test_no_host(): pass\ndef test_not_here():\n    import pytest\n    pytest.skip('no GPU')\n"
    (folder / "test_x.py").write_text(GOOD + more)
    made = passed(machine, folder)
    assert made.summary == "3 tests passed, 1 skipped"
    assert machine.asked == [(0, "echo hello"), (1, "echo hello")]
    assert [(row["test"], row["result"]) for row in made.evidence["tests"]] == [
        ("test_x.py::test_name[node0]", "passed"),
        ("test_x.py::test_name[node1]", "passed"),
        ("test_x.py::test_no_host", "passed"),
        ("test_x.py::test_not_here", "skipped"),
    ]
    assert made.evidence["tests"][-1]["output"] == "Skipped: no GPU"
    assert made.evidence["checksum"] == project.checksum_of_tests(folder)
    assert {path.name for path in folder.iterdir()} == {"test_x.py"}, "nothing is left beside the tests"


@pytest.mark.slow
def test_a_failure_names_test_node_and_reason(machine: Machine, folder: Path) -> None:
    (folder / "test_x.py").write_text(
        "def test_user(host):\n    print('\\x1b[31mred')\n    assert host.run('exit 3').rc == 0\n"
    )
    first, second = refused(machine, folder)
    assert first.message.startswith("`test_x.py::test_user[node0]` failed: AssertionError: assert 3 == 0")
    assert first.remedy == "the report has its output"
    assert "node1" in second.message
    assert "\x1b" not in first.message + second.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (
            "def test_x(host:\n",
            "`test_x.py` cannot be read as tests: SyntaxError: '(' was never closed",
            "run pytest on it: it says where the mistake is",
        ),
        (
            "import no_such_module\n",
            "`test_x.py` cannot be read as tests: ModuleNotFoundError: No module named 'no_such_module'",
            "run pytest on it: it says where the mistake is",
        ),
        (
            "def check_nothing(): pass\n",
            "`image`: it has no tests",
            "write them as `def test_...(host):` in files named test_*.py",
        ),
        (
            "import pytest\n\n@pytest.mark.skip\ndef test_x(): pass\n",
            "`image`: every test was skipped",
            "write them as `def test_...(host):` in files named test_*.py",
        ),
        (
            "import os\ndef test_x(): os._exit(0)\n",
            "`test_x.py::test_x` ended pytest: it printed nothing",
            "a test must return",
        ),
    ],
    ids=["syntax", "import", "none", "skipped", "exits"],
)
def test_what_is_no_good_test_is_told(
    text: str, message: str, remedy: str, machine: Machine, folder: Path
) -> None:
    (folder / "test_x.py").write_text(text)
    assert refused(machine, folder) == (Finding(node="", message=message, remedy=remedy),)


@pytest.mark.slow
def test_a_test_that_hangs_is_ended_and_named(machine: Machine, folder: Path) -> None:
    (folder / "test_x.py").write_text(f"{GOOD}def test_slow():\n    import time; time.sleep(600)\n")
    (finding,) = refused(machine, folder, patience=30 / 600)
    assert finding == Finding(
        node="",
        message="`test_x.py::test_slow` did not end within 30 s",
        remedy="it hangs, or needs longer: --patience multiplies the limit",
    )


def test_other_tests_than_those_of_the_recipe_are_refused(machine: Machine, folder: Path) -> None:
    (folder / "test_x.py").write_text(GOOD)
    checksum = project.checksum_of_tests(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "test_x.pyc").write_text("left by Python")
    assert project.checksum_of_tests(folder) == checksum
    (folder / "test_x.py").write_text(GOOD.replace("==", "!="))
    other = project.checksum_of_tests(folder)
    (finding,) = refused(machine, folder, wanted=checksum)
    assert finding.message == (
        "these are not the tests that the image's recipe names: their checksum is "
        f"{other[:12]}, not {checksum[:12]}"
    )
    assert finding.remedy == "give the folder as it was when the image was built, or build again"


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/"), lambda _path: None])
def test_what_is_no_folder_is_told(make: Callable[[Path], Any], machine: Machine, tmp_path: Path) -> None:
    place = tmp_path / "none"
    make(place)
    (finding,) = refused(machine, place)
    assert finding == Finding(
        node="", message=f"{place}: is not a folder", remedy="name the folder with your test_*.py"
    )


def test_results_that_a_test_forged_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_bytes(
        b'[]\n{"test": 1}\n\xff\n{"test": {}, "result": "passed", "seconds": "x"}\n'
        + b'{"test": "%s", "result": "passed", "output": "%s"}\n' % (b"n" * 9999, b"o" * 9999)
    )
    (row,) = own_tests._rows(file)
    assert (len(row.test), row.result, len(row.output)) == (500, "passed", 2000)
    assert own_tests._rows(tmp_path / "absent") == []


@pytest.mark.slow
def test_too_many_commands_are_refused(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_tests, "_MOST_COMMANDS", 2)
    (folder / "test_x.py").write_text(
        "def test_x(host):\n    for _ in range(3):\n        host.check_output('true')\n"
    )
    with pytest.raises(CheckFailed) as caught:
        own_tests.run(session(machine, folder))
    output = caught.value.evidence["tests"][0]["output"]
    assert "imagebuilder: the tests ran more than 2 commands" in output
    assert len(machine.asked) == 2


def test_a_failing_teardown_counts() -> None:
    rows = [RanTest(test="a", result=result) for result in ("running", "passed", "failed")]
    assert own_tests.judge("x", 1, "", own_tests.last(rows), 9)[0].message.startswith("`a` failed")


def test_the_recipe_s_tests_are_in_the_image_s_label_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_x.py").write_text(GOOD)
    tested = like_shipped(tmp_path, "plain", {"pip: [": "checks: {tests: checks}\npip: ["})
    _, plan = workflow.read_plan(tested)
    assert dict(plan.config.labels)[label_names.TESTS] == project.checksum_of_tests(tmp_path / "checks")
    _, shipped = workflow.read_plan(SHIPPED)
    assert [layer.key for layer in plan.layers] == [layer.key for layer in shipped.layers]
    (tmp_path / "checks" / "test_x.py").unlink()
    with pytest.raises(InputError, match="has no file"):
        workflow.read_plan(tested)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/etc", "`/etc` is not relative to the recipe's folder"),
        ("../../x", "`../../x` leads more than one folder above the recipe's"),
    ],
)
def test_a_recipe_names_no_folder_elsewhere(folder: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(f"plain.yaml:10: checks.tests: {message}")):
        like_shipped(tmp_path, "plain", {"pip: [": f"checks: {{tests: {folder}}}\npip: ["})


def test_the_label_demands_them(machine: Machine, folder: Path) -> None:
    target = from_labels("x", {**LABELS, label_names.TESTS: "b" * 64})
    assert target.tests == "b" * 64
    promise = Promise(runtime="docker", mode="cpu", pins={}, own_tests=True)
    assert CHECK.required(promise)
    reason = CHECK.skip(session(machine, None, wanted="b" * 64))
    assert reason == "the recipe names tests (checksum bbbbbbbbbbbb): give them with --tests"
    assert "no tests are given" in CHECK.skip(session(machine, None))
    assert CHECK.skip(session(machine, folder)) == ""
