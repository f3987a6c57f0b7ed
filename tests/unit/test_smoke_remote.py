"""Nodes that run already: how ssh is called, what their answers may be, and that nothing is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.smoke.nodes import reached, remote
from imagebuilder.smoke.nodes.cluster import Command

# Plays ssh: writes its arguments down, and runs the command line here as the other host's shell would.
SSH = """#!/bin/sh
printf '%s\\n' "$@" >>"$SAID"
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return lambda: (tmp_path / "said").read_text().splitlines()


def node(tmp_path: Path) -> remote.RemoteNode:
    (tmp_path / "folder" / "pids").mkdir(parents=True)
    return remote.RemoteNode("me@gpu1", str(tmp_path / "folder"))


def test_a_command_runs_with_its_variables_and_strict_host_keys(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    odd = "two words; $(touch never) 'x'"
    outcome = node(tmp_path).run(
        Command(argv=("sh", "-c", 'printf "%s|%s" "$A" "$1"', "sh", odd), timeout=20, env={"A": odd})
    )
    assert (outcome.code, outcome.stdout) == (0, f"{odd}|{odd}")
    assert not Path("never").exists()
    words = said()
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15"):
        assert option in words
    assert words[words.index("--") + 1] == "me@gpu1"


def test_the_other_host_ends_what_takes_too_long(said: Callable[[], list[str]], tmp_path: Path) -> None:
    outcome = node(tmp_path).run(Command(argv=("sleep", "30"), timeout=0.5))
    assert (outcome.code, outcome.timed_out) == (124, True)
    assert said()


def test_files_are_copied_and_all_is_removed(said: Callable[[], list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    made = node(tmp_path)
    data = bytes(range(256)) * 100
    made.put("digits", data)
    assert (folder / "digits").read_bytes() == data
    with pytest.raises(EnvironmentFault, match=r"gpu1: beginning failed: .*File exists"):
        made.begin(b"")
    made.end()
    assert not folder.exists()
    assert said()


def test_a_host_that_does_not_answer_ends_the_run_and_the_others_are_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(reached.ReachedNode, "end", lambda self: ended.append(self.name))

    def begin(self: reached.ReachedNode, _archive: bytes) -> None:
        if self.name == "b":
            raise EnvironmentFault("no", where="b")

    monkeypatch.setattr(reached.ReachedNode, "begin", begin)
    with pytest.raises(EnvironmentFault), remote.start(("a", "b"), "0"):
        pass
    assert ended == ["a"]


@pytest.mark.parametrize("text", ["-oProxyCommand=reboot,b", "a b", "a,", "a,$(x)", "a:22,b", "a,a"])
def test_no_option_and_no_command_is_a_host(text: str) -> None:
    with pytest.raises(InputError, match="--hosts: "):
        remote.checked(text)
