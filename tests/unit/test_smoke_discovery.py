"""What a node has that no label tells: asked of this host, and of nodes that answer anything."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.errors import InputError
from imagebuilder.smoke.nodes import discovery, foreign
from imagebuilder.smoke.nodes.cluster import Command, Outcome
from imagebuilder.smoke.nodes.discovery import NodeFacts

ANSWER = (
    "Welcome!\n@found user trainer\n@found uid 1000\n@found home /home/trainer\n@found host node0\n"
    "@found python /opt/conda/bin/python\n@found ssh /usr/bin/ssh\n@found sshd /usr/sbin/sshd\n"
)


class Node:
    """A node that answers the same to every command."""

    name = "node0"

    def __init__(self, stdout: str, code: int = 0) -> None:
        self._outcome = Outcome(code=code, stdout=stdout, stderr="", seconds=1)

    def run(self, command: Command) -> Outcome:
        assert command.timeout > 0
        return self._outcome

    def stop(self) -> None: ...

    def put(self, name: str, data: bytes) -> None: ...


def test_answers_are_read_between_whatever_else_is_printed() -> None:
    assert discovery.discover(Node(ANSWER), "/f") == NodeFacts(
        user="trainer",
        uid=1000,
        home="/home/trainer",
        host="node0",
        python="/opt/conda/bin/python",
        ssh="/usr/bin/ssh",
        sshd="/usr/sbin/sshd",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("python /opt/conda/bin/python", "python ", "no Python of at least 3.9 was found there"),
        ("python /opt/conda/bin/python", "python $(reboot)", "no Python of at least 3.9 was found there"),
        ("uid 1000", "uid root", "it could not be asked what it has: "),
    ],
)
def test_a_node_that_cannot_be_used_says_why(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        discovery.discover(Node(ANSWER.replace(old, new)), "/f")
    assert message in str(caught.value)


def test_paths_and_names_of_a_node_are_checked() -> None:
    facts = discovery.discover(
        Node(ANSWER.replace("home/trainer", "home/a b").replace("user trainer", "user a;b")), "/f"
    )
    assert (facts.home, facts.user) == ("", "")


def test_only_root_may_listen_below_1024() -> None:
    facts = discovery.discover(Node(ANSWER), "/f")
    assert foreign.port(facts) == 2222
    assert "-p 2222 " in foreign.sshd(facts)[-1]
    # PAM would refuse every login to a daemon that is not root's.
    assert " UsePAM=no" in foreign.sshd(facts)[-1]
    assert "UsePAM" not in foreign.sshd(replace(facts, uid=0))[-1]


def test_the_python_with_a_framework_is_found_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagebuilder.smoke.nodes import processes

    (tmp_path / "frameworks.txt").write_text("json\n")
    (tmp_path / "pids").mkdir()
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    facts = discovery.discover(processes.ProcessNode("node0", tmp_path), str(tmp_path))
    assert facts.python.endswith("/bin/python")
    assert facts.uid >= 0
