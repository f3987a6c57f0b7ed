"""testinfra on a node: its commands run like all others, with a time limit and in the transcript."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

if TYPE_CHECKING:
    from imagebuilder.smoke.session import Session

_SECONDS = 30
# Runs a shell line; returns its exit code, and what it wrote to stdout and stderr.
RunLine = Callable[[str], tuple[int, str, str]]


class NodeBackend(BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """A backend for testinfra: it runs commands on a node.

    testinfra's own `docker://` needs the docker command line, which a host with a remote engine or with
    Podman's socket may not have.
    """

    NAME = "imagebuilder"

    def __init__(self, name: str, run_line: RunLine) -> None:
        """Inspect the node with this name."""
        super().__init__(name)
        self._run_line = run_line

    def run(self, command: str, *args: str, **_kwargs: Any) -> CommandResult:
        """Run one of testinfra's shell commands."""
        line = self.get_command(command, *args)
        code, stdout, stderr = self._run_line(line)
        return self.result(code, line.encode(), stdout, stderr)


def on_node(session: Session, index: int) -> RunLine:
    """Return the function that runs shell lines on a node."""

    def run(line: str) -> tuple[int, str, str]:
        outcome = session.run(index, ("sh", "-c", line), timeout=_SECONDS)
        # testinfra has no value for a command without an exit code; 255 is ssh's code for a lost connection.
        return 255 if outcome.code is None else outcome.code, outcome.stdout, outcome.stderr

    return run


def inspect(session: Session, index: int) -> Host:
    """Return testinfra's host object for a node."""
    return Host(NodeBackend(f"node{index}", on_node(session, index)))
