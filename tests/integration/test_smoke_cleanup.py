"""Nothing of a smoke test stays in the engine, however it ends: killed at a random moment, or by Ctrl-C.

`make soak` kills at ten moments (tests/soak/test_many_kills.py).
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from imagebuilder.errors import INTERRUPTED
from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support import smokeruns

# Seconds; all checks on cpu-mpi take nine at least, so that the run is always cut off.
_LONGEST = 8.0


@pytest.mark.parametrize("half", [0, 1])
def test_the_next_run_removes_what_a_killed_one_left(
    half: int, built: Built, connected: Engine, store: Store
) -> None:
    reference = built(ROOT / "recipes" / "cpu-mpi.yaml")
    moment = (half + random.random()) * _LONGEST / 2  # noqa: S311 - no secret
    with smokeruns.start(reference, store) as child:
        time.sleep(moment)
        assert child.poll() is None
        child.kill()
    before = smokeruns.left(connected, child.pid)
    smokeruns.run_next(reference, store)
    assert not smokeruns.left(connected, child.pid, before.volumes), f"killed after {moment:.2f} s"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_cancelled_job_clean_up_at_once(
    sent: signal.Signals, built: Built, connected: Engine, store: Store
) -> None:
    reference = built(ROOT / "recipes" / "cpu-mpi.yaml")
    with smokeruns.start(reference, store) as child:
        smokeruns.await_nodes(connected, child.pid)
        time.sleep(3 * random.random())  # noqa: S311 - no secret
        before = smokeruns.left(connected, child.pid)
        assert before.containers
        started = time.monotonic()
        child.send_signal(sent)
        _, said = child.communicate(timeout=60)
        seconds = time.monotonic() - started
    assert child.returncode == INTERRUPTED
    assert "Traceback" not in said
    assert not smokeruns.left(connected, child.pid, before.volumes)
    # Two containers and a network are removed in about a second; the rest is for a busy host.
    assert seconds < 15
