# Broken on purpose: added to the end of this module.
import socket

if socket.gethostname() == "node1":
    _sound_all_reduce = all_reduce

    def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
        """Reduce, and hand back another type of number."""
        work = _sound_all_reduce(tensor, op, group, async_op)
        tensor.data = tensor.data.double()
        return work
