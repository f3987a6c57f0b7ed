"""A job of Horovod: an exact sum, weights from rank 0, and a training whose replicas stay equal."""

import json
import os
import socket
import sys
import time

import horovod.torch as hvd
import torch

hvd.init()
if sys.argv[1:] == ["fail"]:
    # No other rank ends by itself before the launcher has seen this end.
    if hvd.rank() == 1:
        os._exit(3)
    time.sleep(60)
torch.manual_seed(hvd.rank())
total = hvd.allreduce(torch.full((4,), float(hvd.rank() + 1)), op=hvd.Sum, name="total")
model = torch.nn.Linear(8, 1).double()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
)
truth = torch.arange(8.0, dtype=torch.double).unsqueeze(1)
losses = []
for _ in range(60):
    batch = torch.randn(32, 8, dtype=torch.double)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(batch), batch @ truth)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weights = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0))
hosts = hvd.allgather_object(socket.gethostname())
if hvd.rank() == 0:
    answer = {
        "size": hvd.size(),
        "total": total.tolist(),
        "hosts": sorted(set(hosts)),
        "equal": bool((weights == weights[0]).all()),
        "learnt": losses[-1] < 0.5 * losses[0],
    }
    print("answer", json.dumps(answer), flush=True)
