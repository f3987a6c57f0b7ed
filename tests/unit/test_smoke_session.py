"""What ranks answer, and who is named when a job fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.smoke import local
from imagebuilder.smoke.cluster import Outcome
from imagebuilder.smoke.session import MARKER, CheckFailed, Session
from imagebuilder.smoke.target import Options, Target

TARGET = Target(reference="demo", recipe="demo", lock="", pins=())


@pytest.fixture
def session() -> Iterator[Session]:
    def none(_full: bool) -> Path:
        raise AssertionError("no digits are needed")

    with local.start(Options(), "cpu") as cluster:
        yield Session(cluster, TARGET, Options(), "cpu", {}, none)


def said(session: Session, code: int = 0, nonce: str = "", stderr: str = "", **words: object) -> Outcome:
    line = MARKER + json.dumps({"nonce": nonce or session.nonce, **words})
    return Outcome(code=code, stdout=f"noise\n{line}\n", stderr=stderr, seconds=1)


def ended(code: int | None, stderr: str = "", *, timed_out: bool = False) -> Outcome:
    return Outcome(code=code, stdout="", stderr=stderr, seconds=1, timed_out=timed_out)


def at(node: str, outcome: Outcome) -> Outcome:
    return dataclasses.replace(outcome, node=node)


def test_answers_come_sorted_by_rank(session: Session) -> None:
    found = session.ranks([said(session, rank=1, world_size=2), said(session, rank=0, world_size=2)])
    assert [entry["rank"] for entry in found] == [0, 1]


def test_answers_of_another_run_do_not_count(session: Session) -> None:
    with pytest.raises(CheckFailed, match="rank 1 of 2"):
        session.ranks(
            [said(session, nonce="other", rank=0, world_size=2), said(session, rank=1, world_size=2)]
        )


@pytest.mark.parametrize(
    "ranks",
    [((0, 1), (0, 1)), ((0, 2), (0, 2)), ((0, 2), (1, 3))],
    ids=["two jobs of one", "one twice", "sizes"],
)
def test_ranks_that_are_not_one_job_fail(session: Session, ranks: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(CheckFailed, match="2 ranks were started"):
        session.ranks([said(session, rank=rank, world_size=size) for rank, size in ranks])


def test_silence_with_a_good_exit_code_fails(session: Session) -> None:
    with pytest.raises(CheckFailed):
        session.ranks([ended(0), ended(0)])


def test_a_rank_that_says_why_is_all_that_is_told(session: Session) -> None:
    wrong = at("node1", said(session, code=1, error="element 3 is 11", remedy="see the lock"))
    with pytest.raises(CheckFailed) as caught:
        session.require_ok([at("node0", ended(1, "Connection closed by peer")), wrong])
    assert [(f.node, f.message, f.remedy) for f in caught.value.findings] == [
        ("node1", "element 3 is 11", "see the lock")
    ]


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (ended(3), "ended with 3"),
        (ended(143), "and was ended"),
        (ended(124, timed_out=True), "did not end within"),
    ],
    ids=["died", "hung and was ended", "hung to its limit"],
)
def test_the_rank_that_failed_is_named_before_the_one_that_lost_it(
    session: Session, cause: Outcome, message: str
) -> None:
    waited = ended(1, "RuntimeError: Timed out waiting 60000ms for recv operation")
    with pytest.raises(CheckFailed) as caught:
        session.require_ok([at("node0", waited), at("node1", cause)])
    first, second = caught.value.findings
    assert (first.node, second.node) == ("node1", "node0")
    assert message in first.message
    assert "lost its peer" in second.message


def test_what_ran_is_in_the_transcript_without_this_hosts_paths(session: Session) -> None:
    session.run(
        0,
        (*session.cluster.python, f"{session.cluster.folder}/facts.py", "--nonce", session.nonce),
        timeout=20,
    )
    (step,) = session.steps
    assert step.command == f"python SMOKE/facts.py --nonce {session.nonce}"
    assert (step.node, step.exit_code, step.timed_out) == ("node0", 0, False)


def test_facts_are_what_this_python_has(session: Session) -> None:
    assert set(session.facts) >= {"torch", "mpi4py", "mpirun", "python"}
    assert session.facts["python"].startswith("3.")


def test_patience_stretches_every_limit() -> None:
    options = Options(patience=3.0)
    with local.start(options, "cpu") as cluster:
        patient = Session(cluster, TARGET, options, "cpu", {}, lambda _: Path())
        assert patient._command(("true",), 10, None).timeout == 30
