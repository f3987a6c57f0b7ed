"""Targets fed with a number of seeded mutants, and watched: the sample of `make test`. engine.py is for more.

    python -m tests.fuzz.worker TARGET... --seed 1 --count 10

prints a line of JSON for each. What counts as a crash: an exception that is no `ImagebuilderError`, one with
the exit code of a bug, a message with control characters, more seconds for one input than `PATIENCE`, a file
made, changed or removed outside of the given folder, a command started, a connection to another host.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from imagebuilder.cli.base import shown
from imagebuilder.errors import ImagebuilderError
from tests.fuzz.targets import TARGETS, Target

# Seconds for one input. Most take a hundredth; a mebibyte of nonsense in YAML takes a few.
PATIENCE = 20.0
_MEMORY = 4 << 30
# A mutant may repeat a long line thousands of times; files of gigabytes are what the unit tests have.
LARGEST = 4 << 20
_CASES = Path(__file__).resolve().parents[1] / "cases" / "hostile"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TWO_PATHS = frozenset({"os.rename", "os.link", "os.symlink"})
_ONE_PATH = frozenset(
    {"os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.chown", "os.utime"}
)


class Caught(BaseException):
    """What a target must not do, said where it does it."""


@dataclasses.dataclass(kw_only=True)
class Counts:
    """What came of the inputs of one target.

    Attributes:
        growth: memory in bytes over that before the first input.
        reached: edges of bytecode, at the beginning and at the end.

    """

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    crashes: int = 0
    worst: float = 0.0
    growth: int = 0
    seconds: float = 0.0
    reached: tuple[int, int] = (0, 0)
    said: list[str] = dataclasses.field(default_factory=list)


class Watch:
    """The eyes on what a target does to the world; sees nothing outside of `looking`."""

    def __init__(self, target: Target, root: Path) -> None:
        self._commands = target.commands
        self._root = f"{root}/"
        self._on = False
        sys.addaudithook(self._event)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if (name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES) or (
            name in _ONE_PATH and not _relative_to_a_folder(arguments)
        ):
            self._inside(name, arguments[0])
        elif name in _TWO_PATHS:
            # The source of a link is text; what is made is the second.
            self._inside(name, arguments[1])
        elif name in {"os.system", "os.exec", "os.posix_spawn"} or (
            name == "subprocess.Popen" and not self._may_run(arguments[1][0])
        ):
            self._caught(f"{name}: {arguments[:2]!r}")
        elif name == "socket.connect" and not str(arguments[1][0]).startswith(("127.", "::1", "/")):
            self._caught(f"connects to {arguments[1]!r}")

    def _may_run(self, command: Any) -> bool:
        return any(fnmatch(Path(os.fsdecode(command)).name, pattern) for pattern in self._commands)

    def _inside(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        real = os.path.realpath(os.fsdecode(path))
        if not f"{real}/".startswith(self._root) and real != os.devnull:
            self._caught(f"{event} outside of its folder: {real}")

    def _caught(self, message: str) -> None:
        self._on = False
        raise Caught(message)


def _relative_to_a_folder(arguments: tuple[Any, ...]) -> bool:
    """Tell whether a path counts from a folder that is open, as when a tree is removed safely."""
    return (
        isinstance(arguments[-1], int)
        and arguments[-1] >= 0
        and not Path(os.fsdecode(arguments[0])).is_absolute()
    )


def run(target: Target, seed: int, count: int, keep: Path | None) -> Counts:
    """Feed a target: what is kept in tests/cases/hostile first, then mutants."""
    counts = Counts(target=target.name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="imagebuilder-fuzz-") as name, target.ready(Path(name)) as feed:
        root = Path(name).resolve()
        (root / "tmp").mkdir()
        before, tempfile.tempdir = tempfile.tempdir, str(root / "tmp")
        seeds = [*feed.seeds, *corpus(target.name)]
        watch, size = Watch(target, root), peak()
        try:
            for number in range(max(count, len(seeds))):
                rng = random.Random(f"{seed} {target.name} {number}")  # noqa: S311 repeatable test data
                made = number >= len(seeds)
                data = target.mutate(rng, rng.choice(seeds), seeds)[:LARGEST] if made else seeds[number]
                one(counts, watch, feed, data, root / "in", keep)
        finally:
            tempfile.tempdir = before
        counts.growth = max(peak() - size, 0)
    counts.seconds = time.monotonic() - began
    return counts


def corpus(name: str) -> list[bytes]:
    """Read what is kept for a target: each file once broke something, or could have."""
    return [path.read_bytes() for path in sorted((_CASES / name).glob("*")) if path.is_file()]


def one(counts: Counts, watch: Watch, feed: Any, data: bytes, folder: Path, keep: Path | None) -> None:
    """Give a target one input, and count what came of it."""
    folder.mkdir()
    counts.inputs += 1
    began = time.process_time()
    # By the processor's time, because the machine may be busy; one that only waits has ten times as much.
    _alarms(PATIENCE)
    problem = ""
    try:
        with watch.looking():
            feed.run(data, folder)
        counts.accepted += 1
    except ImagebuilderError as error:
        _alarms(0.0)
        counts.refused += 1
        problem = _wrong_message(error)
    except (Caught, Exception) as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        problem = "".join(traceback.format_exception(error)[-6:])
    _alarms(0.0)
    counts.worst = max(counts.worst, time.process_time() - began)
    shutil.rmtree(folder)
    if problem:
        counts.crashes += 1
        counts.said.append(problem[-2000:])
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{counts.target}-{counts.inputs}").write_bytes(data)


def _wrong_message(error: ImagebuilderError) -> str:
    if error.exit_code not in range(1, 11):
        return f"the exit code {error.exit_code} is that of a bug: {error}"
    text = "\n".join(str(problem) for problem in error.problems)
    if shown(text) != text:
        return f"control characters in a message: {text!r}"
    return "" if len(text) < 200_000 else f"a message of {len(text)} characters"


def _alarms(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * 10)


def _too_slow(_number: int, _frame: Any) -> None:
    raise Caught(f"took more than {PATIENCE:g} s")


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare() -> None:
    """Bound the process's memory and time, and keep warnings off the screen."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    # Warnings of rubbish would fill the screen; making them is part of the test, so the level stays.
    logging.getLogger().addHandler(logging.NullHandler())


def main() -> None:
    """Run the targets that are named, and print what came of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    prepare()
    for name in given.targets:
        counts = run(TARGETS[name], given.seed, given.count, given.keep)
        sys.stdout.write(json.dumps(dataclasses.asdict(counts)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
