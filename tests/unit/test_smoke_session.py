"""What ranks answer, and who is named when a job fails."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder import catalog
from imagebuilder.catalog import Framework
from imagebuilder.smoke.checks import clock, disk, framework_reason, mpirun, rendezvous, transport
from imagebuilder.smoke.nodes import packing, processes
from imagebuilder.smoke.nodes.cluster import Command, NodeLayout, Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.run import run_check
from imagebuilder.smoke.session import MARKER, Check, CheckFailed, Passed, Session
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget

TARGET = SmokeTarget(reference="demo", recipe="demo", lock="", pins=())


@pytest.fixture
def session() -> Iterator[Session]:
    def none(_full: bool) -> Path:
        raise AssertionError("no digits are needed")

    with processes.start(SmokeOptions()) as cluster:
        yield Session(cluster, TARGET, SmokeOptions(), "cpu", {}, none)


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
        (ended(143), "and was killed"),
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
    options = SmokeOptions(patience=3.0)
    with processes.start(options) as cluster:
        patient = Session(cluster, TARGET, options, "cpu", {}, lambda _: Path())
        assert patient._command(("true",), 10, None).timeout == 30


@pytest.fixture
def pairs() -> Iterator[Session]:
    """Two nodes with two ranks each."""

    def none(_full: bool) -> Path:
        raise AssertionError("no digits are needed")

    options = SmokeOptions(nproc_per_node=2)
    with processes.start(options) as cluster:
        yield Session(cluster, TARGET, options, "cpu", {}, none)


# As a payload script that answers with what it was told, without torch.
TOLD = """
import os, sys
sys.path.insert(0, os.path.dirname(__file__))
import common
arguments = common.parser().parse_args()
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "EXTRA")
told = [os.environ.get(name, "") for name in names]
common.say(arguments.nonce, rank=int(told[0]), world_size=int(told[3]), told=told)
sys.exit(int(os.environ["RANK"]) == int(os.environ.get("FAILS", "-1")))
"""


def test_every_rank_is_told_who_and_where_it_is(pairs: Session) -> None:
    assert (pairs.nnodes, pairs.layout.nproc_per_node, pairs.world_size) == (2, 2, 4)
    pairs.nodes[0].put("told.py", TOLD.encode())
    found = pairs.launch("told.py", timeout=20)
    assert [entry["told"][:5] for entry in found] == [
        ["0", "0", "0", "4", "2"],
        ["1", "1", "0", "4", "2"],
        ["2", "0", "1", "4", "2"],
        ["3", "1", "1", "4", "2"],
    ]
    assert [pairs.node_of(rank) for rank in range(4)] == ["node0", "node0", "node1", "node1"]
    assert len(pairs.steps) == 4


def test_a_job_may_have_another_layout_and_more_variables(pairs: Session) -> None:
    pairs.nodes[0].put("told.py", TOLD.encode())
    layout = NodeLayout(nnodes=1, nproc_per_node=2)
    outcomes = pairs.start("told.py", timeout=20, layout=layout, env={"EXTRA": "x"})
    assert [entry["told"][3:] for entry in pairs.ranks(outcomes, layout)] == [["2", "2", "x"]] * 2
    assert [(outcome.node, outcome.rank) for outcome in outcomes] == [("node0", 0), ("node0", 1)]


def test_the_node_of_the_rank_that_fails_is_named(pairs: Session) -> None:
    pairs.nodes[0].put("told.py", TOLD.encode())
    with pytest.raises(CheckFailed) as caught:
        pairs.ranks(pairs.start("told.py", timeout=20, env={"FAILS": "3"}))
    assert [finding.node for finding in caught.value.findings] == ["node1"]


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog with two frameworks, of which this Python has the second one's module."""
    known = {
        "absent": Framework(module="nowhere_to_be_found", tag="a{version}", payloads={"training": "a.py"}),
        "there": Framework(module="json", tag="t{version}", payloads={"training": "t.py", "control": "c.py"}),
    }

    def selected(check: str = "") -> dict[str, Framework]:
        return {name: each for name, each in known.items() if not check or check in each.payloads}

    monkeypatch.setattr(catalog, "frameworks", selected)


@pytest.mark.usefixtures("frameworks")
def test_a_check_runs_with_the_framework_that_is_pinned_else_with_one_that_is_there(session: Session) -> None:
    session.__dict__["facts"] = {"json": True}
    assert session.payload("training") == "t.py"
    session.target = dataclasses.replace(session.target, pins=(("absent", "1"), ("there", "1")))
    assert session.payload("training") == "a.py"
    assert session.payload("control") == "c.py"
    assert framework_reason(session, "training") == ""
    with pytest.raises(CheckFailed, match="no framework with a launcher"):
        session.agents("training", "a:1")


@pytest.mark.usefixtures("frameworks")
def test_a_check_without_a_framework_says_which_it_runs_with(session: Session) -> None:
    session.__dict__["facts"] = {}
    assert framework_reason(session, "training") == "no absent or there in this image"
    assert framework_reason(session, "control") == "no there in this image"
    with pytest.raises(CheckFailed, match="no framework to run this with"):
        session.payload("training")


@pytest.mark.usefixtures("frameworks")
def test_nodes_look_for_the_frameworks_of_the_catalog() -> None:
    with processes.start(SmokeOptions()) as cluster:
        facts = Session(cluster, TARGET, SmokeOptions(), "cpu", {}, lambda _: Path()).facts
    assert (facts["json"], facts["nowhere_to_be_found"]) == (True, False)
    assert {item.path.rpartition("/")[2]: item.data for item in packing.payload()}["frameworks.txt"] == (
        b"nowhere_to_be_found\njson\n"
    )


def words_of_agent(session: Session) -> list[str]:
    """The command of the agent on the second node, of an image that pins torch."""
    session.target = dataclasses.replace(session.target, pins=(("torch", "2.10.0"),))
    return list(session.agents("rendezvous", "a:1", "--only-told")(1))


def test_launchers_are_told_how_many_ranks_a_node_has(pairs: Session) -> None:
    assert pairs.mpirun(["a", "b"], "x", slots=2) == ("mpirun", "-np", "4", "--host", "a:2,b:2", "x")
    assert words_of_agent(pairs) == [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1"),
        *(f"--rdzv-id={pairs.nonce}", "--max-restarts=0", f"{pairs.cluster.folder}/hello.py"),
        *("--nonce", pairs.nonce, "--device", "cpu", "--peer", "localhost", "--only-told"),
    ]


def test_disk_and_clock_are_asked_for_real(session: Session) -> None:
    assert "free in" in disk.run(session).summary
    assert "2 clocks agree" in clock.run(session).summary
    assert all(step.exit_code == 0 for step in session.steps)


def test_a_process_that_a_job_left_is_found(session: Session) -> None:
    session.nodes[0].put("left.py", b"import time; time.sleep(60)")
    left = (*session.cluster.python, f"{session.cluster.folder}/left.py", "--nonce", session.nonce)
    ways = [("sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *left)]
    pid = session.run(0, ways[0], timeout=10).stdout.strip()
    search = session.script("orphans.py", "--script", "left.py", "--seconds", 0)
    (found,) = session.said(session.run(0, search, timeout=20))
    assert [line.split()[0] for line in found["left"]] == [pid]
    os.kill(int(pid), signal.SIGKILL)
    (found,) = session.said(session.run(0, (*search[:-1], "5"), timeout=20))
    assert found["left"] == []


def test_a_transport_that_is_asked_for_cannot_be_passed_over(session: Session) -> None:
    assert transport.CHECK.skip(session) == "no GPU here, so NCCL is not used"
    assert not transport.CHECK.is_required(session)
    asked = Session(session.cluster, TARGET, SmokeOptions(transport="ib"), "cpu", {}, lambda _: Path())
    assert transport.CHECK.is_required(asked)
    assert [transport.expected(one) for one in (session, asked)] == ["any", "ib"]


def test_a_check_runs_with_every_pinned_framework(session: Session) -> None:
    session.target = dataclasses.replace(TARGET, pins=(("torch", "2.10.0"), ("jax", "0.12.0.1")))
    assert session.frameworks("training") == ("jax", "torch")
    assert session.frameworks("rendezvous") == ("torch",)
    assert session.payload("training") == "jax_train.py"
    session.turn = "torch"
    assert session.payload("training") == "train.py"
    session.turn = "jax"
    assert session.payload("rendezvous") == "hello.py", "jax has no launcher"


def test_without_pins_a_check_runs_with_every_installed_framework(session: Session) -> None:
    session.facts = {"jax": True, "tensorflow": False, "torch": True}
    assert session.frameworks("collectives") == ("jax", "torch")
    session.facts = {}
    assert session.frameworks("collectives") == ()
    assert framework_reason(session, "collectives") == "no jax or mxnet or tensorflow or torch in this image"


def test_several_frameworks_share_a_row_of_the_report(session: Session) -> None:
    session.target = dataclasses.replace(TARGET, pins=(("torch", "2.10.0"), ("jax", "0.12.0.1")))

    def run(session: Session) -> Passed:
        if session.payload("training") == "train.py":
            raise CheckFailed.because(Finding(node="node1", message="replicas differ", remedy="look"))
        return Passed(summary="equal", evidence={"ranks": 2})

    check = Check(name="training", order=1, title="", criterion="", run=run)
    result = run_check(check, session)
    assert (result.status, result.summary, result.evidence) == (
        "failed",
        "",
        {"jax": {"ranks": 2}, "torch": {}},
    )
    assert result.findings == (Finding(node="node1", message="torch: replicas differ", remedy="look"),)
    passed = run_check(dataclasses.replace(check, run=lambda _: Passed(summary="equal")), session)
    assert (passed.status, passed.summary) == ("passed", "jax: equal; torch: equal")
    assert session.turn == ""


@pytest.mark.parametrize(("script", "told"), [("tensorflow_train.py", True), ("jax_train.py", False)])
def test_ranks_get_all_addresses_where_the_framework_needs_them(
    session: Session, script: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Command] = []
    monkeypatch.setattr(session, "_run", lambda jobs: ran.extend(command for _, _, command in jobs))
    session.start(script, timeout=20)
    addresses = [command.env.get("IMAGEBUILDER_RANKS", "") for command in ran]
    assert len(set(addresses)) == 1
    assert [place.rpartition(":")[0] for place in addresses[0].split(",")] == (
        ["localhost"] * 2 if told else [""]
    )


@pytest.mark.parametrize(
    ("backend", "why", "evidence", "words"),
    [
        (False, "", rendezvous.NO_MPI, "gloo over eth0"),
        (True, "no MPI in this image", "not tried: no MPI in this image", "gloo over eth0"),
        (True, "", None, "2 ranks by torch's MPI backend"),
    ],
    ids=["torch of the index", "no mpirun", "both"],
)
def test_ranks_meet_by_mpi_where_torch_and_the_image_have_it(
    session: Session, monkeypatch: pytest.MonkeyPatch, backend: bool, why: str, evidence: str, words: str
) -> None:
    rank = {"host": "a", "backend": "gloo", "interface": "eth0", "mpi": backend}
    lines = [said(session, rank=number, world_size=2).stdout for number in range(2)]
    outcome = Outcome(code=0, stdout="".join(lines), stderr="", seconds=1)
    monkeypatch.setattr(rendezvous, "_meet", lambda *_arguments: (rank, rank))
    monkeypatch.setattr(mpirun, "reason", lambda _session: why)
    monkeypatch.setattr(session, "mpi", lambda *_argv, **_limits: outcome)
    passed = rendezvous.run(session)
    assert passed.summary.endswith(words)
    found = passed.evidence["MPI backend"]
    assert found == evidence if evidence else [entry["rank"] for entry in found] == [0, 1]


def test_an_mpi_backend_that_fails_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "reason", lambda _session: "")
    monkeypatch.setattr(session, "mpi", lambda *_argv, **_limits: at("node0", ended(1, "PMIx lost")))
    with pytest.raises(CheckFailed, match=r"meeting by MPI .*mpirun.*: ended with 1: PMIx lost"):
        rendezvous._by_mpi(session)
