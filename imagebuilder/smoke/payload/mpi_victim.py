"""Wait, as one rank of an MPI job; rank 1 is killed. Nothing of MPI is needed for that but who one is."""

from __future__ import annotations

import os
import signal
import time

import common

arguments = common.parser(ranks=False).parse_args()
# The prefixes of Open MPI's variables and of MPICH's.
prefix = "OMPI_COMM_WORLD" if "OMPI_COMM_WORLD_RANK" in os.environ else "PMI"
rank, world_size = (int(os.environ[f"{prefix}_{name}"]) for name in ("RANK", "SIZE"))
common.say(arguments.nonce, rank=rank, world_size=world_size, reached=1)
if rank == 1:
    time.sleep(1)  # so that the others have started, too
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
