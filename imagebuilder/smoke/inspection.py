"""testinfra on a node: its commands run like all others, with a time limit and in the transcript."""

from __future__ import annotations

from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

from imagebuilder.smoke.session import Session

_SECONDS = 30


class NodeBackend(BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """A backend for testinfra: it runs commands on a node.

    testinfra's own `docker://` needs the docker command line, which a host with a remote engine or with
    Podman's socket may not have.
    """

    NAME = "imagebuilder"

    def __init__(self, session: Session, index: int) -> None:
        """Inspect one node of a session."""
        super().__init__(f"node{index}")
        self._session = session
        self._index = index

    def run(self, command: str, *args: str, **_kwargs: Any) -> CommandResult:
        """Run one of testinfra's shell commands."""
        line = self.get_command(command, *args)
        outcome = self._session.run(self._index, ("sh", "-c", line), timeout=_SECONDS)
        # testinfra has no value for a command without an exit code; 255 is ssh's code for a lost connection.
        code = 255 if outcome.code is None else outcome.code
        return self.result(code, line.encode(), outcome.stdout, outcome.stderr)


def inspect(session: Session, index: int) -> Host:
    """Return testinfra's host object for a node."""
    return Host(NodeBackend(session, index))
