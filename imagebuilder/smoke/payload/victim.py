"""Sum tensors for ever, as one rank of a job; rank 1 is killed in the middle of it."""

from __future__ import annotations

import os
import signal

import common

STEPS_BEFORE = 20


def main() -> None:
    arguments = common.parser().parse_args()
    torch, dist, device = common.join(arguments)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(1 << 14, device=device)
    step = 0
    while True:
        dist.all_reduce(tensor)
        float(tensor[0])  # a GPU would only queue it
        step += 1
        if step == STEPS_BEFORE:
            common.say(arguments.nonce, rank=rank, world_size=world_size, reached=step)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)


main()
