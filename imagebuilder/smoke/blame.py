"""Find the rank that caused a job to fail. Its peers also fail, because they lose the connection to it."""

from __future__ import annotations

import signal

from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding

_TERMINATED = 128 + signal.SIGTERM
_SIGNALS = {number.value: number.name for number in signal.Signals}
# What gloo, NCCL and torch's store print when another rank is gone or does not answer.
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "remote process exited",
    "Watchdog caught collective operation timeout",
)


def blame(outcome: Outcome) -> int:
    """Rank the failed commands of a job by how likely they are the cause, from 0 (likely) to 3 (only waited).

    A rank whose peer died or hung fails with a message that says so. A rank that hangs itself prints nothing
    and is killed.
    """
    if outcome.code is None or _lost_peer(outcome):
        return 3
    return 2 if outcome.timed_out else 1 if outcome.code == _TERMINATED else 0


def ended(outcome: Outcome) -> Finding:
    """Say how a command that failed ended."""
    if outcome.code is None:
        return Finding(node=outcome.node, message=outcome.last_words, remedy="see the check `contents`")
    if outcome.timed_out:
        message = f"did not end within {outcome.seconds:.0f} s; its last words: {outcome.last_words}"
        remedy = "a rank that hangs waits for a peer or computes forever: the report has its output"
    elif outcome.code == _TERMINATED:
        message = f"still ran after {outcome.seconds:.0f} s, when other ranks had given up, and was killed"
        remedy = "it hung, or could not be reached any more: the report has its output"
    elif _lost_peer(outcome):
        message = f"lost its peer: {outcome.last_words}"
        remedy = "the cause is on the other node"
    elif (number := outcome.code - 128) in _SIGNALS:
        message = f"was killed by {_SIGNALS[number]}; its last words: {outcome.last_words}"
        remedy = "compiled code crashed, or the kernel ran out of memory and killed it (then `dmesg` says so)"
    else:
        message = f"ended with {outcome.code}: {outcome.last_words}"
        remedy = "the report has the whole output"
    return Finding(node=outcome.node, message=message, remedy=remedy)


def _lost_peer(outcome: Outcome) -> bool:
    return any(sign in outcome.stderr for sign in _PEER_LOST)
