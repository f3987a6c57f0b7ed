"""The checks: one module each, with what it runs, when it passes, and what to do when it does not.

`load` lists this folder. Checks run in the order of their numbers: from what a node holds to what all nodes
do together.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from imagebuilder import catalog
from imagebuilder.smoke.session import Check, Session


@cache
def load() -> tuple[Check, ...]:
    """Collect the `CHECK` of every module here, in the order in which they run."""
    modules = [import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.CHECK for module in modules), key=lambda check: (check.order, check.name)))


def hostname_reason(session: Session) -> str:
    """Say why a check of separate hosts cannot run, where the nodes are processes of one."""
    return "the ranks are processes of one host here" if session.cluster.kind == "process" else ""


def framework_reason(session: Session, check: str) -> str:
    """Say why a check of a framework cannot run; an image that promises one is checked whatever it holds."""
    if session.framework(check):
        return ""
    return f"no {' or '.join(catalog.frameworks(check))} in this image"
