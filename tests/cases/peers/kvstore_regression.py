"""Fit a line with MXNet's KVStore, whose server moves the weights. Processes of other roles become that on import.

python launch.py -n 2 -s 1 -H hosts --launcher ssh python kvstore_regression.py
"""

import mxnet as mx
from mxnet import autograd, nd

kv = mx.kv.create("dist_sync")
mx.random.seed(kv.rank)
weight, bias = nd.zeros((1, 1)), nd.zeros(1)
for parameter in (weight, bias):
    parameter.attach_grad()
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.2, rescale_grad=1 / kv.num_workers))
for key, parameter in enumerate((weight, bias)):
    kv.init(key, parameter)
for _ in range(100):
    x = nd.random.uniform(-1, 1, (64, 1))
    with autograd.record():
        loss = ((nd.dot(x, weight) + bias - (3 * x - 2)) ** 2).mean()
    loss.backward()
    for key, parameter in enumerate((weight, bias)):
        kv.push(key, parameter.grad)
        kv.pull(key, out=parameter)
slope, offset = (float(parameter.asnumpy().item()) for parameter in (weight, bias))
fit = f"y = {slope:.3f} x + {offset:.3f}"
print(f"worker {kv.rank} of {kv.num_workers} | {fit}", flush=True)
kv._barrier()
