"""Join the other ranks of torchrun's job in a process group, or only report what torchrun told this rank."""

from __future__ import annotations

import os

import common


def main() -> None:
    parser = common.parser()
    parser.add_argument(
        "--only-told", action="store_true", help="say what torchrun told; do not join the group"
    )
    parser.add_argument("--file", default="", help="then meet by this file, which no rank has made yet")
    parser.add_argument("--mpi", action="store_true", help="meet by MPI, which has started this rank")
    arguments = parser.parse_args()
    if arguments.mpi:
        by_mpi(arguments.nonce)
    interface, _ = common.interface_to(arguments.peer)
    if arguments.only_told:
        common.say(
            arguments.nonce,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            node_rank=int(os.environ["GROUP_RANK"]),
            master=os.environ["MASTER_ADDR"],
            interface=interface,
        )
        return
    torch, dist, device = common.join(arguments)
    rank, world_size, backend = dist.get_rank(), dist.get_world_size(), dist.get_backend()
    gather(arguments.nonce, torch, dist, device)
    if arguments.file:
        common.leave(dist)
        try:
            common.start(
                dist, device, init_method=f"file://{arguments.file}", rank=rank, world_size=world_size
            )
        except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
            common.fail(
                arguments.nonce,
                f"rank {rank} does not meet the others by file://: {error}",
                "the folder that the nodes share is not the same for all, or files there cannot be locked",
                rank=rank,
                world_size=world_size,
            )
        gather(arguments.nonce, torch, dist, device)
    common.say(
        arguments.nonce,
        rank=rank,
        world_size=world_size,
        backend=backend,
        interface=interface,
        mpi=dist.is_mpi_available(),
    )
    common.end(dist)


def by_mpi(nonce: str) -> None:
    """Gather over torch's MPI backend, and end."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpi")
    gather(nonce, torch, dist, torch.device("cpu"))
    common.say(nonce, rank=dist.get_rank(), world_size=dist.get_world_size(), backend=dist.get_backend())
    dist.barrier()
    dist.destroy_process_group()
    # torch leaves MPI when Python ends.
    raise SystemExit


def gather(nonce: str, torch, dist, device) -> None:
    """Gather the numbers of all ranks: each must be there once."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    seen = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(seen, torch.tensor([rank], dtype=torch.int64, device=device))
    found = [int(entry) for entry in seen]
    if found != list(range(world_size)):
        common.fail(nonce, f"rank {rank} gathered the ranks {found}", rank=rank, world_size=world_size)


main()
