"""What is done to a store in the middle of builds, and what came of it.

Used by tests/integration/test_store_faults.py (a sample) and bench/store_faults.py (all of it).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core.progress import no_advance
from imagebuilder.store import Store, cache
from tests.support import wheelimage
from tests.support.wheels import dice

Start = Callable[[Store], subprocess.Popen[str]]
"""Begins a build in a store, in a process that prints its outcome as JSON."""

_LIMIT = 900.0


@dataclass(frozen=True, kw_only=True)
class Kills:
    """What many kills did: how many hit a running build, and how many left files behind for a time."""

    kills: int
    hit: int
    left_files: int
    seconds: float


def outcome(child: subprocess.Popen[str]) -> tuple[int, dict[str, object], str]:
    """Wait for a build: exit code, what it said, and its messages."""
    try:
        stdout, stderr = child.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()  # else whoever started it waits for its end
        raise
    said = json.loads(stdout) if child.returncode == 0 else {}
    # A build by the command line answers with an envelope, and one by a test's own script with its result.
    said = said.get("result", said)
    return child.returncode, said, stderr


def built(start: Start, store: Store) -> dict[str, object]:
    """Build to the end; it has to succeed."""
    code, said, messages = outcome(start(store))
    assert code == 0, messages
    return said


def killed_at_random(start: Start, store: Store, count: int, seed: int, fresh: Callable[[], None]) -> Kills:
    """Kill builds at random points, each going on from what the last one left; at the end one must succeed.

    Args:
        start: begins a build.
        store: the one store of all.
        count: how many to kill; a kill that comes after a build's end does not count.
        seed: of the random points.
        fresh: brings the store back to where a build has everything to do; called whenever a build ended
            before its kill.

    """
    random = dice(seed)
    began = time.monotonic()
    built(start, store)
    whole = time.monotonic() - began
    fresh()
    kills = hit = left = 0
    began = time.monotonic()
    # Bounded: a host on which builds are ever faster than the first one would go on for ever.
    while hit < count and kills < 3 * count:
        kills += 1
        child = start(store)
        time.sleep(random.uniform(0.05, whole))
        if child.poll() is None:
            hit += 1
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if _is_done(child):
            fresh()
        left += any((store.root / "work").glob("*"))
        if random.random() < 0.1:  # else later builds would have ever less to do
            fresh()
    return Kills(kills=kills, hit=hit, left_files=left, seconds=time.monotonic() - began)


def damage(path: Path, how: str, other: Path) -> None:
    """Damage a file as disks and people do: `truncated`, `flipped` (a bit), `swapped` (another's bytes)."""
    data = path.read_bytes()
    half = len(data) // 2
    broken = {
        "truncated": data[:half],
        "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        "swapped": other.read_bytes(),
    }[how]
    # What the store has is read-only, and may be linked to from elsewhere.
    path.unlink()
    path.write_bytes(broken)


def at_once(start: Start, store: Store, count: int) -> list[dict[str, object]]:
    """Run builds at the same time on one store; all have to succeed."""
    with ExitStack() as children:
        running = [children.enter_context(start(store)) for _ in range(count)]
        ended = [outcome(child) for child in running]
    assert [code for code, _, _ in ended] == [0] * count, [messages for _, _, messages in ended]
    return [said for _, said, _ in ended]


def damages(store: Store) -> Sequence[str]:
    """Read the whole store and name what is not what it should be."""
    return [f"{damage.path.name} {damage.reason}" for damage in cache.verify(store, no_advance)]


def forget(store: Store, *kinds: str) -> None:
    """Empty parts of a store (`blobs`, `layers`, `downloads`, ...)."""
    for kind in kinds:
        shutil.rmtree(store.root / kind, ignore_errors=True)


def wheels(folder: Path, *before: str) -> Start:
    """Start builds of the wheels in a folder; `before` is a command that each is started by."""

    def start(store: Store) -> subprocess.Popen[str]:
        return wheelimage.start(folder, store, *before)

    return start


def _is_done(child: subprocess.Popen[str]) -> bool:
    return child.returncode == 0
