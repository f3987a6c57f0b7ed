"""Sum integers over all ranks of an MPI job, so that the result must be exact.

Through mpi4py if the image has it; else by calling libmpi directly, with the ABI of Open MPI or of MPICH.
"""

from __future__ import annotations

import array
import ctypes

import common

LENGTH = 4096


def main() -> None:
    arguments = common.parser(ranks=False).parse_args()
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        through, (rank, size, result) = "libmpi", by_library()
    else:
        world = MPI.COMM_WORLD
        result = array.array("q", bytes(8 * LENGTH))
        world.Allreduce([mine(world.Get_rank()), MPI.INT64_T], [result, MPI.INT64_T], op=MPI.SUM)
        through, rank, size = "mpi4py", world.Get_rank(), world.Get_size()
    for index in range(LENGTH):
        wanted = index * size * (size + 1) // 2
        if result[index] != wanted:
            common.fail(
                arguments.nonce,
                f"rank {rank}: element {index} of the sum is {result[index]}, must be {wanted}",
                "MPI's own libraries on the nodes do not fit together",
                rank=rank,
                world_size=size,
            )
    common.say(arguments.nonce, rank=rank, world_size=size, through=through, last=result[LENGTH - 1])


def mine(rank: int) -> array.array:
    return array.array("q", (index * (rank + 1) for index in range(LENGTH)))


def by_library() -> tuple[int, int, array.array]:
    library, world, number, add = handles()
    rank, size = ctypes.c_int(), ctypes.c_int()
    library.MPI_Init(None, None)
    library.MPI_Comm_rank(world, ctypes.byref(rank))
    library.MPI_Comm_size(world, ctypes.byref(size))
    sent, got = mine(rank.value), array.array("q", bytes(8 * LENGTH))
    library.MPI_Allreduce(
        ctypes.c_void_p(sent.buffer_info()[0]),
        ctypes.c_void_p(got.buffer_info()[0]),
        ctypes.c_int(LENGTH),
        number,
        add,
        world,
    )
    library.MPI_Finalize()
    return rank.value, size.value, got


def handles() -> tuple[ctypes.CDLL, object, object, object]:
    """Return the library, and its values of MPI_COMM_WORLD, MPI_INT64_T and MPI_SUM."""
    try:
        library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        # In MPICH's ABI, version 12, these are numbers, fixed in its mpi.h.
        library = ctypes.CDLL("libmpi.so.12", mode=ctypes.RTLD_GLOBAL)
        return library, ctypes.c_int(0x44000000), ctypes.c_int(0x4C00083A), ctypes.c_int(0x58000003)
    # In Open MPI's ABI these are addresses of objects in the library.
    names = ("ompi_mpi_comm_world", "ompi_mpi_int64_t", "ompi_mpi_op_sum")
    world, number, add = (
        ctypes.c_void_p(ctypes.addressof(ctypes.c_byte.in_dll(library, name))) for name in names
    )
    return library, world, number, add


if __name__ == "__main__":
    main()
