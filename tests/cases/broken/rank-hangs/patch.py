# Broken on purpose: added to the end of this module.
import socket
import time

if socket.gethostname() == "node1":

    def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
        """Never come back."""
        time.sleep(3600)
