"""Seconds, peak memory and bytes written of a piece of work, whoever does it: we or a daemon.

Linux only: all of it is read from /proc and /sys.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Seconds between two looks at the memory of all processes: a peak that is shorter goes unseen.
_INTERVAL = 0.1
_SECTOR = 512  # of /sys/dev/block/*/stat, whatever the device says: Documentation/block/stat.rst


@dataclass(kw_only=True)
class Reading:
    """What a meter says once its `with` block has ended.

    Attributes:
        seconds: wall time.
        memory: most bytes that all watched processes held together, files in the page cache not counted.
        written: bytes that reached the disk below the folder, by the device's own counter. It counts for
            everyone: nothing else may write meanwhile. None where the file system has no device.

    """

    seconds: float = 0.0
    memory: int = 0
    written: int | None = None


@contextmanager
def metered(folder: Path, *, excluding: Collection[int] = ()) -> Iterator[Reading]:
    """Measure a block.

    Watched are all descendants of this process, and not this process itself.

    Args:
        folder: on the disk whose writes are counted.
        excluding: processes that are left out, with their descendants: servers of other sides.

    """
    reading = Reading()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            reading.memory = max(reading.memory, _memory(os.getpid(), excluding))

    os.sync()
    before = written(folder)
    watcher = threading.Thread(target=watch, name="meter", daemon=True)
    watcher.start()
    started = time.monotonic()
    try:
        yield reading
    finally:
        reading.seconds = time.monotonic() - started
        ended.set()
        watcher.join()
        # What is still in memory only would be counted for whoever comes next.
        os.sync()
        after = written(folder)
        reading.written = None if before is None or after is None else after - before


def written(folder: Path) -> int | None:
    """Read how many bytes the disk below a folder was given so far; None without a disk."""
    device = folder.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    try:
        return int(stat.read_text().split()[6]) * _SECTOR
    except OSError:
        return None


def _memory(root: int, excluding: Collection[int]) -> int:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  (ten times a second: no objects)
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything, so what counts comes after the last one.
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    waiting, memory = list(children.get(root, ())), 0
    while waiting:
        pid = waiting.pop()
        if pid not in excluding:
            memory += _held(pid)
            waiting += children.get(pid, ())
    return memory


def _held(pid: int) -> int:
    """Read the bytes a process holds that are no file's: proc(5), /proc/pid/status."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * sum(
            int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))
        )
    return 0
