"""Failures are named by their cause: the line that says it, though it is not the last one."""

from __future__ import annotations

import pytest

from imagebuilder.smoke.blame import ended
from imagebuilder.smoke.checks import rendezvous, ssh
from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding

REFUSED_KEY = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Permissions 0644 for '/run/imagebuilder/id_ed25519' are too open.
root@node1: Permission denied (publickey).
"""


def outcome(code: int, stderr: str = "", *, seconds: float = 1.0, timed_out: bool = False) -> Outcome:
    return Outcome(node="node0", code=code, stdout="", stderr=stderr, seconds=seconds, timed_out=timed_out)


def test_ssh_is_quoted_where_it_says_why() -> None:
    finding = ssh._failed("node0", "node1", outcome(255, REFUSED_KEY))
    assert finding.message == "ssh node1: WARNING: UNPROTECTED PRIVATE KEY FILE!"
    assert "mode 0600" in finding.remedy


def test_what_ssh_says_is_passed_on_where_nothing_is_known_of_it() -> None:
    finding = ssh._failed("node0", "node1", outcome(255, "kex_exchange: odd\n"))
    assert finding.message == "ssh node1: kex_exchange: odd"


def test_an_answer_that_does_not_come_points_to_a_firewall() -> None:
    finding = ssh._failed("node0", "node1", outcome(124, seconds=45.2, timed_out=True))
    assert finding.message == "ssh node1: gave no answer within 45 s"
    assert "firewall" in finding.remedy


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (139, "SIGSEGV"), (135, "SIGBUS")])
def test_a_rank_that_was_killed_is_told_from_one_that_failed(code: int, name: str) -> None:
    assert ended(outcome(code, "step 29\n")).message == f"was killed by {name}; its last words: step 29"
    assert ended(outcome(3, "step 29\n")).message == "ended with 3: step 29"


def test_an_agent_that_does_not_get_through_points_to_a_firewall() -> None:
    said = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception."
    finding = rendezvous._at("host name", "node0", Finding(node="node1", message=said, remedy="x"))
    assert finding.message == f"meeting by host name (node0): {said}"
    assert "firewall" in finding.remedy
    assert rendezvous._at("host name", "node0", Finding(node="", message="y", remedy="x")).remedy == "x"
