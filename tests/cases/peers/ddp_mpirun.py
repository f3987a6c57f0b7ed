"""The same training, started by mpirun, which has variables of its own for who a process is:

mpirun -n 2 --hostfile hosts -x MASTER_ADDR=HOST -x MASTER_PORT=29500 python ddp_mpirun.py
"""

import os

os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]

from ddp_torchrun import main

main()
