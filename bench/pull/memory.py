"""Memory that is there: what a machine of its own has, and a virtual machine often must wait for.

Many hosts take the free memory of a virtual machine. Then each page waits for the host when it is first
written, and much of a pull, which writes gigabytes into the page cache, is this waiting. So a process takes
the free memory and writes it once. While the pull runs, it gives back what the kernel needs.
"""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LEFT_FREE = 400_000_000
_STEP = 1 << 26


@contextlib.contextmanager
def present() -> Iterator[None]:
    """Until the block ends, free memory is memory that the host has given already."""
    command = [sys.executable, "-m", "bench.pull.memory"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT) as holder:
        if holder.stdout:
            holder.stdout.readline()
        try:
            yield
        finally:
            holder.kill()


def _free() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    return 0


def _hold() -> None:
    size = max(_free() - _LEFT_FREE, _STEP) // _STEP * _STEP
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    filling = b"x" * _STEP
    for start in range(0, size, _STEP):
        held[start : start + _STEP] = filling
    print("held", flush=True)
    given = 0
    while True:
        if given < size and _free() < _LEFT_FREE:
            held.madvise(mmap.MADV_DONTNEED, given, _STEP)
            given += _STEP
        else:
            time.sleep(0.01)


if __name__ == "__main__":
    _hold()
