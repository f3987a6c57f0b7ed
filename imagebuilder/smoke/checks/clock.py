"""Clocks: the nodes' clocks agree, as ranks see them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30
# NTP keeps hosts within milliseconds. Ssh certificates, tokens and logs tolerate seconds, but a difference
# of a whole second already means that nothing synchronises the clocks.
_SKEW = 1.0

# How far a clock is ahead of this host's, in seconds: at least, and at most.
Offset = tuple[float, float]


def run(session: Session) -> Passed:
    offsets: dict[str, Offset] = {}
    for index, node in enumerate(session.nodes):
        before = time.time()
        outcome = session.run(
            index, session.script("clock.py"), timeout=_SECONDS, env=session.rank_env(index)
        )
        after = time.time()
        session.require_ok([outcome])
        said = session.said(outcome)
        if not said:
            raise CheckFailed("the node did not report its time", node=node.name)
        now = float(said[-1]["now"])
        # The clock was read between these two moments: a slow engine widens the bounds but fails no check.
        offsets[node.name] = (now - after, now - before)
    findings = judge(offsets)
    if findings:
        raise CheckFailed.because(*findings)
    widest = max(most - least for least, most in offsets.values())
    return Passed(
        summary=f"{len(offsets)} clocks agree within {_SKEW:g} s, each read to {widest:.2f} s",
        evidence={
            node: {"ahead at least": round(least, 3), "ahead at most": round(most, 3)}
            for node, (least, most) in offsets.items()
        },
    )


def judge(offsets: Mapping[str, Offset]) -> list[Finding]:
    """Return the clocks that certainly differ by more than a second from the first node's."""
    (reference, first), *others = offsets.items()
    findings = []
    for node, other in others:
        skew = certain_skew(other, first)
        if abs(skew) > _SKEW:
            findings.append(
                Finding(
                    node=node,
                    message=f"the clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} "
                    f"{reference}'s, at least; {_SKEW:g} s is allowed",
                    remedy="keep the hosts' clocks with NTP (`chronyc tracking`); in containers, which have "
                    "no clock of their own, look for libfaketime in LD_PRELOAD or /etc/ld.so.preload",
                )
            )
    return findings


def certain_skew(one: Offset, other: Offset) -> float:
    """Return how far one clock is certainly ahead of another, given the bounds of both.

    >>> certain_skew((9.0, 10.0), (0.0, 1.0)), certain_skew((0.0, 1.0), (0.5, 1.5))
    (8.0, 0.0)
    """
    if one[0] > other[1]:
        return one[0] - other[1]
    if one[1] < other[0]:
        return one[1] - other[0]
    return 0.0


CHECK = Check(
    name="clock",
    order=70,
    title="the clock on each node, as a rank's process sees it",
    criterion=f"no node's clock is certainly more than {_SKEW:g} s from the first one's",
    run=run,
    skip=lambda session: "a log does not say when it was written" if session.cluster.kind == "job" else "",
    required=lambda promise: promise.asked,
)
