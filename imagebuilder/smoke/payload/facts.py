"""What this Python and this PATH have; nothing is imported, so that a broken package cannot stop it."""

from __future__ import annotations

import importlib.util
import platform
import shutil

import common

arguments = common.parser(ranks=False).parse_args()
found = {name: importlib.util.find_spec(name) is not None for name in ("torch", "numpy", "mpi4py")}
tools = {name: shutil.which(name) or "" for name in ("mpirun", "torchrun", "ssh")}
common.say(arguments.nonce, python=platform.python_version(), **found, **tools)
