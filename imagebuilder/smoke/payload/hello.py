"""Meet the other ranks as torchrun introduced them: over the process group, or only by what each was told."""

from __future__ import annotations

import os

import common

parser = common.parser()
parser.add_argument("--only-told", action="store_true", help="say what torchrun told; do not join the group")
arguments = parser.parse_args()
interface, _ = common.interface_to(arguments.peer)
if arguments.only_told:
    common.say(
        arguments.nonce,
        rank=int(os.environ["RANK"]),
        size=int(os.environ["WORLD_SIZE"]),
        master=os.environ["MASTER_ADDR"],
        interface=interface,
    )
else:
    torch, dist, device = common.join(arguments)
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(seen, torch.tensor([rank], dtype=torch.int64, device=device))
    found = [int(entry) for entry in seen]
    if found != list(range(size)):
        common.fail(arguments.nonce, f"rank {rank} gathered the ranks {found}", rank=rank, size=size)
    common.say(arguments.nonce, rank=rank, size=size, backend=dist.get_backend(), interface=interface)
    common.leave(dist)
