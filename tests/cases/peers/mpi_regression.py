"""Fit a line to points that are spread over all ranks, with mpi4py and numpy: gradients by allreduce.

mpirun -n 2 -x LEARNING_RATE python mpi_regression.py
"""

import os

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
rate = float(os.environ.get("LEARNING_RATE", "0.01"))

# Every rank has its own part of the points of y = 3 x - 2.
x = np.linspace(-1.0, 1.0, 512)[rank::size]
y = 3.0 * x - 2.0
weights = np.zeros(2)
for step in range(200):
    error = weights[0] * x + weights[1] - y
    local = np.array([2 * (error * x).mean(), 2 * error.mean()])
    gradient = np.empty_like(local)
    comm.Allreduce(local, gradient, op=MPI.SUM)
    weights -= rate * gradient / size

everyone = comm.gather((MPI.Get_processor_name(), weights.tolist()))
if rank == 0:
    same = all(np.array_equal(weights, other) for _, other in everyone)
    hosts = " ".join(sorted(host for host, _ in everyone))
    print(f"ranks {size} on {hosts} | rate {rate} | y = {weights[0]:.3f} x + {weights[1]:.3f} | same {same}")
