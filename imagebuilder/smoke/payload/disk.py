"""Report the free space for temporary files, and whether a file can be written and synced to the disk."""

from __future__ import annotations

import os
import tempfile

import common

TRIED = 1 << 20

arguments = common.parser(ranks=False).parse_args()
# Python falls back to another folder where it cannot write to the first one; programs in C do not.
folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - it is what is asked about
error = ""
free = inodes = 0
try:
    status = os.statvfs(folder)
    # A file system without a fixed number of inodes (btrfs, overlay on some) reports 0 of 0.
    free, inodes = status.f_frsize * status.f_bavail, status.f_favail if status.f_files else -1
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * TRIED)
        file.flush()
        os.fsync(file.fileno())
except OSError as problem:
    error = problem.strerror or str(problem)
common.say(arguments.nonce, folder=folder, free=free, inodes=inodes, wrote=error)
