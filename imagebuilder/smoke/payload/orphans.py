"""What is left of a job: processes that were given this run's nonce and have another script's name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import common

parser = common.parser(ranks=False)
parser.add_argument("--script", required=True)
parser.add_argument("--seconds", type=float, required=True, help="how long they have to vanish")
arguments = parser.parse_args()


def left() -> list[str]:
    processes = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in (os.getpid(), os.getppid()):
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # the process has just ended
        # Only a word that ends with the script's path, so that this process and its shell do not match.
        if arguments.nonce in words and any(word.endswith(f"/{arguments.script}") for word in words):
            processes.append(f"{folder.name} {' '.join(words).strip()}"[:300])
    return processes


until = time.monotonic() + arguments.seconds
while (processes := left()) and time.monotonic() < until:
    time.sleep(0.2)
common.say(arguments.nonce, left=processes)
