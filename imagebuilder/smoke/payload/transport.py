"""Run one allreduce that is large enough to use every channel. NCCL's log of it is read outside the image."""

from __future__ import annotations

import os

import common

arguments = common.parser().parse_args()
_, own = common.interface_to(arguments.peer)
torch, dist, device = common.join(arguments)
dist.all_reduce(torch.ones(1 << 22, device=device))
torch.cuda.synchronize()
common.say(
    arguments.nonce,
    rank=dist.get_rank(),
    world_size=dist.get_world_size(),
    address=own,
    interface=os.environ["NCCL_SOCKET_IFNAME"],
)
common.end(dist)
