"""Programs that tests start: SIGINT ends them also where this run ignores it, and every wait has an end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.programs import interruptible, running

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]


@pytest.fixture(autouse=True)
def in_the_background() -> Iterator[None]:
    """A run that a shell without job control started with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN


def test_ctrl_c_ends_a_program_of_a_run_that_ignores_it() -> None:
    with running(SLEEP) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert child.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said


def test_ctrl_c_reaches_the_test_itself() -> None:
    with interruptible(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_program_ends_with_its_test_and_at_its_limit() -> None:
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), running(SLEEP) as child:
        raise ZeroDivisionError
    assert child.returncode == -signal.SIGKILL
    with running(SLEEP, limit=0.5) as child:
        assert child.stdout is not None
        assert child.stdout.read() in ("here\n", "")
    assert child.returncode == -signal.SIGKILL
    assert time.monotonic() - began < 20
