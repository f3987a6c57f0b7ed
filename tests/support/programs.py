"""Programs of their own for tests: Ctrl-C reaches them, and none outlives its test.

A shell without job control lets what it starts in the background ignore SIGINT, and children inherit that.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT mean what it means at a terminal, here and in what is started meanwhile."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def running(command: Sequence[str | Path], *, limit: float = 600) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and kill it at the end or after `limit` seconds: a read from it ends then."""
    with interruptible():
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(limit, child.kill)
    watch.daemon = True
    watch.start()
    with child:
        try:
            yield child
        finally:
            watch.cancel()
            child.kill()
