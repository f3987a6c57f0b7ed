"""Running commands on nodes: with processes for nodes, which behave as containers do."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.smoke.nodes import cluster, processes
from imagebuilder.smoke.nodes.cluster import Command, Outcome, run_together
from imagebuilder.smoke.nodes.processes import ProcessCluster
from imagebuilder.smoke.target import SmokeOptions
from tests.support.programs import interruptible


@pytest.fixture
def nodes() -> Iterator[ProcessCluster]:
    with processes.start(SmokeOptions()) as started:
        yield started


def shell(script: str, timeout: float = 10) -> Command:
    return Command(argv=("sh", "-c", script), timeout=timeout)


def test_every_exit_code_and_stream_is_collected(nodes: ProcessCluster) -> None:
    both = run_together(list(zip(nodes.nodes, (shell("echo a"), shell("echo b >&2; exit 3")), strict=True)))
    assert [(o.code, o.stdout, o.stderr) for o in both] == [(0, "a\n", ""), (3, "", "b\n")]
    assert [o.ok for o in both] == [True, False]


def test_a_command_that_outruns_its_limit_is_ended(nodes: ProcessCluster) -> None:
    (outcome,) = run_together([(nodes.nodes[0], shell("sleep 30", timeout=0.5))])
    assert outcome.timed_out
    assert not outcome.ok
    assert outcome.seconds < 5


def test_when_one_rank_fails_the_others_are_ended(
    nodes: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_GRACE", 0.2)
    started = time.monotonic()
    first, second = run_together([(nodes.nodes[0], shell("exit 1")), (nodes.nodes[1], shell("sleep 30", 30))])
    assert (first.code, second.code) == (1, 143)
    assert not second.timed_out
    assert time.monotonic() - started < 10


def test_ctrl_c_ends_what_runs(nodes: ProcessCluster, tmp_path: Path) -> None:
    mark = tmp_path / "runs"

    def press() -> None:
        until = time.monotonic() + 20
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    script = f"trap ': >{tmp_path}/ended; exit 1' TERM; touch {mark}; while :; do sleep 0.05; done"
    threading.Thread(target=press).start()
    with interruptible(), pytest.raises(KeyboardInterrupt):
        run_together([(nodes.nodes[0], shell(script, 30))])
    for _ in range(100):
        if (tmp_path / "ended").exists():
            return
        time.sleep(0.05)
    pytest.fail("the command still runs")


def test_an_engine_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        name = "node0"

        def run(self, _command: Command) -> Outcome:
            time.sleep(60)
            raise AssertionError

        def stop(self) -> None: ...

        def put(self, name: str, data: bytes) -> None: ...

    monkeypatch.setattr(cluster, "_PATIENCE", 0.1)
    (outcome,) = run_together([(Silent(), shell("true", 0.1))])
    assert outcome.code is None
    assert outcome.timed_out


def test_an_error_of_the_engine_reaches_the_caller() -> None:
    class Broken:
        name = "node0"

        def run(self, _command: Command) -> Outcome:
            raise ConnectionError("gone")

        def stop(self) -> None: ...

        def put(self, name: str, data: bytes) -> None: ...

    with pytest.raises(ConnectionError, match="gone"):
        run_together([(Broken(), shell("true"))])


def test_last_and_first_words_leave_rulers_out() -> None:
    outcome = Outcome(code=1, stdout="out", stderr="-----\nfirst\n\nsecond\n-----\n", seconds=0)
    assert (outcome.first_words, outcome.last_words) == ("first second", "second")
    assert Outcome(code=1, stdout="out\n", stderr=" \n", seconds=0).last_words == "out"
    assert Outcome(code=1, stdout="", stderr="", seconds=0).last_words == "it printed nothing"


def test_a_report_does_not_name_this_host(nodes: ProcessCluster) -> None:
    (outcome,) = run_together(
        [(nodes.nodes[0], Command(argv=(sys.executable, "-c", "import sys; print(sys.prefix)"), timeout=20))]
    )
    assert sys.prefix not in outcome.stdout
    assert "/venv" in outcome.stdout
