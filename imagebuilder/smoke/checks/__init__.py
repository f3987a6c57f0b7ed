"""The checks: one module each, with what it runs, when it passes, and what to do when it does not.

Their order is `imagebuilder.smoke.run.CHECKS`: from what a node holds to what all nodes do together.
"""

from __future__ import annotations

from imagebuilder.smoke.session import Session


def hostname_reason(session: Session) -> str:
    """Say why a check of separate hosts cannot run, where the nodes are processes of one."""
    return "the ranks are processes of one host here" if session.cluster.kind == "process" else ""


def torch_reason(session: Session) -> str:
    """Say why a check of torch cannot run; an image that promises torch is checked whatever it holds."""
    return "" if session.has_torch or torch_pinned(session) else "no torch in this image"


def torch_pinned(session: Session) -> bool:
    return bool(session.target.pin("torch"))
