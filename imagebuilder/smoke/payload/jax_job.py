"""Join a job of JAX: one device for each rank, and a mesh of all of them."""

from __future__ import annotations

import os

import common
import numpy as np


def join(arguments):
    """Meet the other ranks at the coordinator, rank 0; returns JAX's module and the mesh.

    JAX has no variables for this. jax.distributed.initialize gets what the variables of a rank say.
    """
    cuda = arguments.device == "cuda"
    os.environ["JAX_PLATFORMS"] = "cuda" if cuda else "cpu"
    if not cuda:
        # One device of this process, however many processors there are.
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    import jax

    # Sums of 64-bit numbers must be exact, and training must not hide a wrong average in rounding.
    jax.config.update("jax_enable_x64", True)
    if not cuda:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    coordinator = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    common.require_reached(arguments.nonce, "JAX's coordinator, rank 0,", [coordinator])
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
        local_device_ids=int(os.environ.get("LOCAL_RANK", "0")) if cuda else None,
        # Later than the message about a coordinator that is not reached.
        initialization_timeout=common.TIMEOUT + 10,
    )
    return jax, jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))


class Ranks:
    """Run functions on the arrays of all ranks: each has a row of one array that is spread over the mesh."""

    def __init__(self, jax, mesh) -> None:
        self.jax, self.mesh = jax, mesh
        self.compiled: dict[object, object] = {}
        self.row = jax.sharding.PartitionSpec("ranks")

    def spread(self, array):
        """Return the array of all ranks' arrays, of which this rank has its own."""
        own = self.jax.device_put(array[None], self.jax.local_devices()[0])
        shape = (self.mesh.size, *array.shape)
        sharding = self.jax.sharding.NamedSharding(self.mesh, self.row)
        return self.jax.make_array_from_single_device_arrays(shape, sharding, [own])

    def own(self, spread):
        """Return this rank's part of an array of all ranks, as numpy's."""
        return np.asarray(spread.addressable_shards[0].data)[0]

    def each(self, function):
        """Compile, once, a function of this rank's arrays that may use collectives over `ranks`."""
        if function not in self.compiled:

            def rows(*arrays):
                results = function(*(array[0] for array in arrays))
                return self.jax.tree.map(lambda result: result[None], results)

            mapped = self.jax.shard_map(rows, mesh=self.mesh, in_specs=self.row, out_specs=self.row)
            self.compiled[function] = self.jax.jit(mapped)
        return self.compiled[function]
