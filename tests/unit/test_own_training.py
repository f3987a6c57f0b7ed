"""The user's own training as a check: what the payload tells of a command, and what the check makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core import labels as label_names
from imagebuilder.errors import InputError
from imagebuilder.recipe.checks import Bound, Checks, TrainingCheck
from imagebuilder.smoke.checks import own_training
from imagebuilder.smoke.nodes.cluster import PAYLOAD
from imagebuilder.smoke.session import MARKER
from imagebuilder.smoke.target import from_labels
from imagebuilder.smoke.verdict import required
from tests.unit import samples

ASKED = TrainingCheck(command="python -m app.smoke", timeout=20, metric="accuracy >= 0.9")
PRINT_IT = "print it on a line of its own, `imagebuilder-metric: accuracy=0.95`; metrics that were printed: "
LABELS = {
    label_names.LOCK: "a" * 64,
    label_names.SSH_PORT: "22",
    label_names.SSH_USER: "root",
    f"{label_names.PIN}torch": "2.10.0",
}


def payload(*command: str, seconds: float = 20, **env: str) -> tuple[int, dict[str, Any], str]:
    """Run the payload; gives its exit code, its answer, and what else it printed."""
    words = ("--nonce", "n", "--command", json.dumps(command), "--seconds", str(seconds))
    ended = subprocess.run(
        [sys.executable, PAYLOAD / "own.py", *words],
        check=False,
        capture_output=True,
        timeout=60,
        env={**os.environ, "RANK": "1", "WORLD_SIZE": "2", **env},
    )
    (line,) = [row for row in ended.stdout.decode().splitlines() if row.startswith(MARKER)]
    answer: dict[str, Any] = json.loads(line.removeprefix(MARKER))
    return ended.returncode, answer, ended.stdout.decode().replace(line, "")


def python(code: str, **how: Any) -> tuple[int, dict[str, Any], str]:
    return payload(sys.executable, "-c", code, **how)


def test_a_command_that_ends_well_is_told_with_its_metrics() -> None:
    code, answer, output = python(
        "for loss in (0.9, 0.31): print(f'imagebuilder-metric: loss={loss}')\n"
        "print('imagebuilder-metric: loss=nan'); print('imagebuilder-metric: Loss=1')\n"
        "print(' imagebuilder-metric: x=1'); print('imagebuilder-metric: y=1 and more'); print('done')"
    )
    assert (code, answer["code"], answer["rank"], answer["world_size"]) == (0, 0, 1, 2)
    assert (answer["metrics"], answer["last"], answer["late"]) == ({"loss": 0.31}, "done", False)
    assert output.strip().endswith("done")


def test_every_exit_code_counts() -> None:
    code, answer, _ = python("import sys; sys.exit(3)")
    assert (code, answer["code"], answer["last"]) == (1, 3, "")
    code, answer, _ = python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (code, answer["code"]) == (1, -11)


def test_a_command_that_is_not_there_is_named_with_its_folder() -> None:
    code, answer, _ = payload("./train.sh")
    assert (code, answer["code"]) == (1, 127)
    assert answer["why"] == f"cannot start `./train.sh` in {Path.cwd()}: No such file or directory"


def test_a_command_that_hangs_is_killed_with_what_it_started() -> None:
    started = time.monotonic()
    code, answer, _ = python(
        "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('waiting', flush=True)\n"
        "sys.stdin.read(); subprocess.run(['sleep', '600'])",
        seconds=1,
    )
    assert time.monotonic() - started < 20
    assert (code, answer["late"], answer["last"]) == (1, True, "waiting")


def test_what_a_command_prints_is_bounded() -> None:
    code, answer, output = python(
        "import sys\nfor i in range(200): sys.stdout.write('x' * 1_000_000)\n"
        "for i in range(1000): print(f'\\nimagebuilder-metric: m{i}=1', end='')\n"
    )
    assert (code, len(answer["metrics"]), len(answer["last"]) <= 400) == (0, 20, True)
    assert len(output) < 4000


def rank(number: int, **changes: Any) -> dict[str, Any]:
    fine = {"code": 0, "stopped": False, "late": False, "seconds": 1.0, "last": "", "metrics": {}}
    return {"rank": number, "world_size": 2, "host": f"node{number}", **fine, **changes}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            [rank(0, code=-9, stopped=True), rank(1, code=3, last="no data")],
            [
                (
                    "node1",
                    "rank 1 of 2 ended with 3: no data",
                    "the report has the end of its output",
                )
            ],
        ),
        (
            [rank(0, code=None, late=True, last="step 3"), rank(1, code=-11)],
            [
                (
                    "node1",
                    "rank 1 of 2 was killed by SIGSEGV, and printed nothing",
                    "the report has the end of its output",
                ),
                (
                    "node0",
                    "rank 0 of 2 did not end within 20 s: step 3",
                    "it hangs, or needs longer: `timeout:` under `checks.training` sets the limit",
                ),
            ],
        ),
        (
            [rank(0), rank(1, code=127, why="cannot start `./t` in /workspace: No such file or directory")],
            [
                (
                    "node1",
                    "rank 1 of 2 cannot start `./t` in /workspace: No such file or directory",
                    "is it in the image? `copy:` and `project:` put files there",
                )
            ],
        ),
        (
            [rank(0, metrics={"loss": 0.3}), rank(1)],
            [
                (
                    "",
                    "no rank printed the metric `accuracy`",
                    f"{PRINT_IT}loss",
                )
            ],
        ),
        (
            [rank(1, metrics={"accuracy": 0.95}), rank(0, metrics={"accuracy": 0.89})],
            [
                (
                    "",
                    "accuracy is 0.89, and the recipe asks for accuracy >= 0.9",
                    "the report has the end of the output; the limit is `metric:` under `checks.training`",
                )
            ],
        ),
        ([rank(0, metrics={"accuracy": 0.9}), rank(1)], []),
    ],
)
def test_what_is_wrong_is_said_with_rank_and_remedy(
    answers: list[dict[str, Any]], told: list[tuple[str, str, str]]
) -> None:
    found = own_training.judge(ASKED, answers, 2)
    assert [(finding.node, finding.message, finding.remedy) for finding in found] == told


def test_a_forged_answer_hides_no_failure() -> None:
    """A command can read its parent's arguments, and so print an answer of its own."""
    (found,) = own_training.judge(ASKED, [rank(0), rank(1), rank(1, code=3)], 2)
    assert found.message == "rank 1 of 2 ended with 3, and printed nothing"


def test_answers_that_are_nonsense_are_no_metrics() -> None:
    answers = [rank(0, metrics=["loss"]), {"rank": "x", "code": 0, "metrics": {"a": "1", "b": 2}}]
    assert own_training.metrics(answers) == {"b": 2.0}


def test_limits_are_compared_as_written() -> None:
    assert Bound(name="x", compare="<", limit=1.0).holds(0.9)
    assert not Bound(name="x", compare="<", limit=1.0).holds(1.0)
    assert Bound(name="x", compare="<=", limit=-1.5).holds(-1.5)
    assert TrainingCheck(command="x", metric="loss").bound == Bound(name="loss", compare="", limit=0.0)
    assert TrainingCheck(command="x").bound is None
    assert Checks(training="python 'a b.py'").own_training == TrainingCheck(command="python 'a b.py'")
    assert TrainingCheck(command="python 'a b.py'").words == ("python", "a b.py")


def test_the_image_promises_it_by_a_label() -> None:
    for asked in (ASKED, TrainingCheck(command="python -m app.smoke"), None):
        recipe = samples.recipe(checks=Checks(training=asked))
        labels = dict(plans.plan(select(recipe), samples.lock(), ()).config.labels)
        assert from_labels("x", labels).training == asked
    assert required("docker", "cpu", {}, own_training=True) - required("docker", "cpu", {}) == {
        "own-training"
    }


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"command": "", "timeout": 5}', '{"command": "a\\nb"}'])
def test_a_label_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"its label `org\.imagebuilder\.check\.training` is not a training"):
        from_labels("x", {**LABELS, label_names.TRAINING: text})
