"""The limits that a process has here: shared memory, locked memory, open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import common

arguments = common.parser(ranks=False).parse_args()


def limit(which: int) -> int:
    """Return a soft limit; -1 if there is none."""
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft


shm = os.statvfs("/dev/shm")  # noqa: S108 - it is what is asked about
devices = Path("/sys/class/infiniband")
common.say(
    arguments.nonce,
    shm=shm.f_frsize * shm.f_blocks,
    memlock=limit(resource.RLIMIT_MEMLOCK),
    nofile=limit(resource.RLIMIT_NOFILE),
    # Every container sees the host's devices in /sys, but can use them only if it has their device files.
    rdma=devices.is_dir() and any(devices.iterdir()) and Path("/dev/infiniband").is_dir(),
)
