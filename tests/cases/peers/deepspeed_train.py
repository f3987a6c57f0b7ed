"""A job of DeepSpeed: ZeRO on CPUs, an exact sum, weights that stay equal, and nothing compiled on the way."""

import argparse
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

BATCH = 64
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--fail", action="store_true")
asked = parser.parse_args()

deepspeed.init_distributed()
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
if asked.fail and rank == 1:
    os._exit(3)
total = torch.full((4,), float(rank + 1))
deepspeed.comm.all_reduce(total)

truth = torch.linspace(-1, 1, 8).unsqueeze(1)


def made() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def batches() -> Iterator[torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    return (torch.randn(BATCH, 8, generator=source) for _ in range(100))


def lost(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch), batch @ truth)


# The same training by one process and torch alone.
alone = made()
adam = torch.optim.Adam(alone.parameters(), lr=0.01)
for batch in batches():
    adam.zero_grad()
    lost(alone, batch).backward()
    adam.step()

model = made()
optimizer = FusedAdam if asked.stage == 1 else DeepSpeedCPUAdam
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=optimizer(model.parameters(), lr=0.01),
    # Without a word of it, DeepSpeed limits gradients to the norm 1.
    config={"train_batch_size": BATCH, "gradient_clipping": 0.0, "zero_optimization": {"stage": asked.stage}},
)
losses = []
for batch in batches():
    loss = lost(engine, batch[rank::size])
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())

parameters = list(engine.module.parameters())
with deepspeed.zero.GatheredParameters(parameters):
    weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
expected = torch.cat([parameter.detach().flatten() for parameter in alone.parameters()])
every = [torch.empty_like(weights) for _ in range(size)]
torch.distributed.all_gather(every, weights)
caches = [Path.home() / ".cache/torch_extensions", Path("/tmp/torch_extensions")]
mine = {
    "host": socket.gethostname(),
    "operators": [
        name.rpartition(".")[2] for name in sys.modules if re.fullmatch(r"deepspeed\.ops\..*_op", name)
    ],
    "compiled": [str(path) for path in caches if path.exists()],
}
facts = [None] * size
torch.distributed.all_gather_object(facts, mine)
if rank == 0:
    answer = {
        "stage": engine.zero_optimization_stage(),
        "size": size,
        "total": total.tolist(),
        "hosts": sorted({fact["host"] for fact in facts}),
        "operators": sorted({name for fact in facts for name in fact["operators"]}),
        "compiled": sorted({path for fact in facts for path in fact["compiled"]}),
        "equal": all(torch.equal(one, every[0]) for one in every),
        "learnt": losses[-1] < 0.1 * losses[0],
        "as alone": torch.allclose(every[0], expected, atol=1e-4),
    }
    print("answer", json.dumps(answer), flush=True)
torch.distributed.destroy_process_group()
