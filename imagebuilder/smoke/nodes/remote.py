"""Nodes that run already, reached by this user's own ssh.

ssh's own settings hold: known hosts, keys, jump hosts. A host whose key is unknown is an error.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.smoke.nodes import reached
from imagebuilder.smoke.nodes.reached import ReachedCluster, ReachedNode

_HOST = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_.-]{0,31}@)?([A-Za-z0-9][A-Za-z0-9.-]{0,252})")
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o", "ForwardAgent=no"),
)


class RemoteNode(ReachedNode):
    """A host that ssh reaches by a name: `host` or `user@host`."""

    unreached = 255

    def __init__(self, target: str, folder: str) -> None:
        """Take the name, and the folder that the test makes there."""
        super().__init__(target.rpartition("@")[2], folder)
        self._target = target

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        return ("ssh", *_OPTIONS, "--", self._target, shlex.join(argv))

    @property
    def hint(self) -> str:
        return f"`ssh -o BatchMode=yes {self._target} true` must work from here, without a question"


@contextlib.contextmanager
def start(hosts: Sequence[str], run_id: str) -> Iterator[ReachedCluster[RemoteNode]]:
    """Copy the scripts to the hosts, and remove them at the end.

    Raises:
        EnvironmentFault: a host cannot be reached.
        InputError: a host cannot be used.

    """
    folder = reached.folder(run_id)
    nodes = tuple(RemoteNode(target, folder) for target in hosts)
    with reached.begun(nodes):
        yield ReachedCluster(nodes, folder)


def checked(text: str) -> tuple[str, ...]:
    """Read a list of hosts, separated by commas.

    >>> checked("gpu1,me@gpu2")
    ('gpu1', 'me@gpu2')

    Raises:
        InputError: one is not a host's name, or one is there twice.

    """
    hosts = tuple(text.split(","))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InputError(
                f"`{printable(host)}` is not a host",
                where="--hosts",
                hint="write `--hosts a,b` or `--hosts user@a,user@b`; ports and keys go into ~/.ssh/config",
            )
    if len(set(hosts)) < len(hosts):
        raise InputError("a host is there twice", where="--hosts")
    return hosts
