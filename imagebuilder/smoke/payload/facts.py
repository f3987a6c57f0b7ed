"""Report which modules and programs are installed, without an import: a broken package cannot stop it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

import common

arguments = common.parser(ranks=False).parse_args()
frameworks = Path(__file__).with_name("frameworks.txt").read_text(encoding="utf-8").split()
found = {name: importlib.util.find_spec(name) is not None for name in (*frameworks, "numpy", "mpi4py")}
tools = {name: shutil.which(name) or "" for name in ("mpirun", "torchrun", "ssh", "gcc", "all_reduce_perf")}
# What this process may run on, which may be less than the host has.
cpus = sorted(os.sched_getaffinity(0))
common.say(arguments.nonce, cpus=cpus, python=platform.python_version(), **found, **tools)
