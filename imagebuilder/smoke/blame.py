"""Who is to blame when a job fails: the rank that failed by itself, not those that then lost it."""

from __future__ import annotations

import signal

from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding

_TERMINATED = 128 + signal.SIGTERM
_SIGNALS = {number.value: number.name for number in signal.Signals}
# What gloo, NCCL and torch's store say when another rank is gone, or does not answer.
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "remote process exited",
    "Watchdog caught collective operation timeout",
)


def blame(outcome: Outcome) -> int:
    """Rank failed commands of one job by how likely they are the cause: 0 failed by itself, 3 only waited.

    A rank whose peer died or hung says so, and fails as well; the one that hung says nothing and is ended.
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
        remedy = "a rank that hangs waits for a peer, or computes for ever: the report has the whole output"
    elif outcome.code == _TERMINATED:
        message = f"still ran after {outcome.seconds:.0f} s, when others had given up, and was ended"
        remedy = "it hung, or was not reached any more: the report has the whole output"
    elif _lost_peer(outcome):
        message = f"lost its peer: {outcome.last_words}"
        remedy = "the cause is on the other node"
    elif (number := outcome.code - 128) in _SIGNALS:
        message = f"was killed by {_SIGNALS[number]}; its last words: {outcome.last_words}"
        remedy = "a crash in compiled code, or the kernel's answer to too little memory (`dmesg` says so)"
    else:
        message = f"ended with {outcome.code}: {outcome.last_words}"
        remedy = "the report has the whole output"
    return Finding(node=outcome.node, message=message, remedy=remedy)


def _lost_peer(outcome: Outcome) -> bool:
    return any(sign in outcome.stderr for sign in _PEER_LOST)
