"""Wait, as one rank of an MPI job; rank 1 is killed. Nothing of MPI is needed for that but who one is."""

from __future__ import annotations

import os
import signal
import time

import common

arguments = common.parser(ranks=False).parse_args()
# The variables of Open MPI's mpirun, of MPICH's, and of Slurm's srun with PMIx.
names = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)
rank, world_size = next(
    (int(os.environ[one]), int(os.environ[all_])) for one, all_ in names if one in os.environ
)
common.say(arguments.nonce, rank=rank, world_size=world_size, reached=1)
if rank == 1:
    time.sleep(1)  # so that the others have started, too
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
