"""The checks. Each module has what it runs, when it passes, and what to do if it fails.

`load` lists this folder. Checks run in the order of their numbers: first those of single nodes, then those of
all nodes together.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from imagebuilder import catalog
from imagebuilder.smoke.session import Check, Session


@cache
def load() -> tuple[Check, ...]:
    """Return the `CHECK` of every module in this folder, in the order in which they run."""
    modules = [import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.CHECK for module in modules), key=lambda check: (check.order, check.name)))


def hostname_reason(session: Session) -> str:
    """Say why a check that needs separate hosts cannot run if the nodes are processes of one host."""
    return "the nodes are processes of one host" if session.cluster.kind == "process" else ""


def container_reason(session: Session) -> str:
    """Say why a check of the files and settings of an image cannot run on nodes that run already."""
    running = session.cluster.kind in {"ssh", "slurm", "job"}
    reason = "the nodes run already, with settings of their own" if running else ""
    return hostname_reason(session) or reason


def login_reason(session: Session) -> str:
    """Say why a check that needs ssh between nodes cannot run."""
    if session.target.has_ssh:
        return hostname_reason(session)
    if session.cluster.kind == "slurm":
        return "no login by ssh works between the nodes; Slurm starts ranks without it"
    if session.cluster.kind == "job":
        return "the job has no keys to log in to its nodes with"
    return hostname_reason(session) or "no ssh and sshd in this image"


def framework_reason(session: Session, check: str) -> str:
    """Say why a check that needs a framework cannot run. It always runs if a framework is pinned."""
    if session.framework(check):
        return ""
    return f"no {' or '.join(catalog.frameworks(check))} in this image"
