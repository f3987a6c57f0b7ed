"""The smoke test killed at ten random moments, spread over a run."""

from __future__ import annotations

import random
import time

import pytest

from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support import smokeruns

# Seconds; before the first there is only Python, and all checks on cpu-mpi take nine at least.
_FIRST, _LAST = 1.0, 8.5
_MOMENTS = 10


@pytest.mark.parametrize("part", range(_MOMENTS))
def test_the_next_run_removes_what_a_killed_one_left(
    part: int, built: Built, connected: Engine, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = built(ROOT / "recipes" / "cpu-mpi.yaml")
    moment = _FIRST + (part + random.random()) * (_LAST - _FIRST) / _MOMENTS  # noqa: S311 - no secret
    with smokeruns.start(reference, store) as child:
        time.sleep(moment)
        assert child.poll() is None
        child.kill()
    before = smokeruns.left(connected, child.pid)
    smokeruns.run_next(reference, store)
    after = smokeruns.left(connected, child.pid, before.volumes)
    with capsys.disabled():
        print(  # noqa: T201 - what a soak is run for
            f"\nkilled after {moment:5.2f} s: left {len(before.containers)} containers, "
            f"{len(before.networks)} networks, {len(before.volumes)} volumes; after the next run "
            f"{len(after.containers)}, {len(after.networks)}, {len(after.volumes)}"
        )
    assert not after
