"""testinfra on a node: its commands go the way of all others, with a time limit and into the transcript."""

from __future__ import annotations

from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

from imagebuilder.smoke.session import Session

_SECONDS = 30


class NodeBackend(BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """What testinfra needs of a place: running a command there.

    Its own `docker://` does this with the docker command line, which a host that talks to a remote engine, or
    to Podman's socket, need not have.
    """

    NAME = "imagebuilder"

    def __init__(self, session: Session, index: int) -> None:
        """Look at one node of a session."""
        super().__init__(f"node{index}")
        self._session = session
        self._index = index

    def run(self, command: str, *args: str, **_kwargs: Any) -> CommandResult:
        """Run one of testinfra's shell lines."""
        line = self.get_command(command, *args)
        outcome = self._session.run(self._index, ("sh", "-c", line), timeout=_SECONDS)
        # No code is testinfra's idea of nothing at all; 255 is what it knows from ssh for a lost connection.
        code = 255 if outcome.code is None else outcome.code
        return self.result(code, line.encode(), outcome.stdout, outcome.stderr)


def inspect(session: Session, index: int) -> Host:
    """Open a node to testinfra."""
    return Host(NodeBackend(session, index))
