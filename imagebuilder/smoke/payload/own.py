"""Run the user's own command as one rank, and tell its exit code, its metrics and its last line.

The command's output is read to its end, but only a little of it is kept, whatever it prints.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import common

KEPT = 3000
LINE = 1000
MOST_METRICS = 20
METRIC = re.compile(rb"imagebuilder-metric: ([a-z][a-z0-9_]{0,39})=([-+.0-9a-zA-Z]{1,40})\s*")
# Launchers tell a rank its number by variables: torchrun, Open MPI, and MPICH.
PLACES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


class Output:
    """What a command prints: its end, its last line that is not empty, and its metrics."""

    def __init__(self) -> None:
        self.tail = b""
        self.last = b""
        self.metrics: dict[str, float] = {}
        self._line = b""

    def read(self, pipe) -> None:
        """Read a pipe to its end; a line counts up to its first thousand bytes."""
        while piece := os.read(pipe.fileno(), 1 << 16):
            self.tail = (self.tail + piece)[-KEPT:]
            first, *rest = piece.split(b"\n")
            self._line = (self._line + first)[:LINE]
            for line in rest:
                self._end()
                self._line = line[:LINE]
        self._end()

    def _end(self) -> None:
        self.last = self._line.strip() or self.last
        match = METRIC.fullmatch(self._line)
        if not match:
            return
        name = match[1].decode()
        try:
            value = float(match[2])
        except ValueError:
            return
        if math.isfinite(value) and (name in self.metrics or len(self.metrics) < MOST_METRICS):
            self.metrics[name] = value


def main() -> None:
    parser = common.parser()
    parser.add_argument("--command", required=True, help="its words, as JSON")
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    rank, size = next(
        ((int(os.environ[rank]), int(os.environ[size])) for rank, size in PLACES if rank in os.environ),
        (0, 1),
    )
    words = json.loads(arguments.command)
    place = {"rank": rank, "world_size": size}
    try:
        # A session of its own, so that all that it starts can be ended. A launcher may hand files down.
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=False,
        )
    except OSError as error:
        why = f"cannot start `{words[0]}` in {Path.cwd()}: {error.strerror}"
        common.say(arguments.nonce, **place, code=127, why=why)
        sys.exit(1)
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        kill(child)

    signal.signal(signal.SIGTERM, stop)
    output = Output()
    reader = threading.Thread(target=output.read, args=(child.stdout,), daemon=True)
    reader.start()
    started = time.monotonic()
    late = False
    try:
        code = child.wait(arguments.seconds)
    except subprocess.TimeoutExpired:
        late = True
        code = None
    seconds = time.monotonic() - started
    kill(child)
    child.wait()
    # A process that it left behind in another session may hold the pipe open.
    reader.join(5)
    os.write(1, output.tail + b"\n")
    common.say(
        arguments.nonce,
        **place,
        code=code,
        stopped=stopped.is_set(),
        late=late,
        seconds=round(seconds, 3),
        last=output.last.decode(errors="replace")[:400],
        metrics=output.metrics,
    )
    sys.exit(1 if code or late else 0)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a command with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


main()
