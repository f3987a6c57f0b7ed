"""A sample of the pushes through a proxy that breaks things; `make soak` does two hundred of them."""

from __future__ import annotations

from pathlib import Path

from tests.support import faulty_proxy
from tests.support.faulty_pushes import run_pushes


def test_nothing_is_lost_and_nothing_is_wrong(tmp_path: Path) -> None:
    outcome = run_pushes(tmp_path, count=16, seed=7)
    assert outcome.failures == []
    assert outcome.wrong == []
    assert outcome.pushes == 16
    # It would prove little if nothing had happened.
    assert outcome.kills == 2
    assert outcome.retries > 20
    assert outcome.resumed > 0
    assert all(outcome.faults[kind] for kind in faulty_proxy.FAULTS), outcome.table()
