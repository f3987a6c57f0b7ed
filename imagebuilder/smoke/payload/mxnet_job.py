"""Join a job of MXNet's KVStore `dist_sync`: a scheduler, a server that adds up, and a worker for each rank.

Rank 0 starts the scheduler and the server. A worker waits for ever for one that has ended, and does not say
for which. So each also holds a connection to rank 0. If it breaks, the job ends, and names the rank.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import common
from numpy_ops import leave

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_END = 30  # seconds for the scheduler and the server
_COME = common.TIMEOUT + 10  # seconds; a worker that does not find the scheduler says so before
_BYE = b"."


class Job:
    """A rank's worker of the KVStore, and what rank 0 has started beside it."""

    def __init__(self, arguments) -> None:
        self.nonce = arguments.nonce
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _, own = common.interface_to(arguments.peer)
        # ps-lite takes addresses, and no names.
        place = socket.gethostbyname(os.environ["MASTER_ADDR"]), os.environ["MASTER_PORT"]
        os.environ |= {
            "DMLC_PS_ROOT_URI": place[0],
            "DMLC_PS_ROOT_PORT": place[1],
            "DMLC_NODE_HOST": own,
            "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": str(self.world_size),
        }
        roles = ("scheduler", "server") if self.rank == 0 else ()
        self.others = {role: started(role) for role in roles}
        common.require_reached(self.nonce, "the KVStore's scheduler, at rank 0,", [":".join(place)])
        self.keep_roll(os.environ["IMAGEBUILDER_RANKS"].split(",")[0])
        os.environ["DMLC_ROLE"] = "worker"
        import mxnet

        if not mxnet.runtime.Features().is_enabled("DIST_KVSTORE"):
            common.fail(
                self.nonce, "this MXNet was compiled without DIST_KVSTORE", "use a wheel of the index"
            )
        self.mx = mxnet
        # A rank that fails must not wait for the others, as the KVStore does when Python ends.
        atexit.register(os._exit, 1)
        # The server adds up on CPUs, whatever the workers have.
        self.store = mxnet.kv.create("dist_sync")

    def keep_roll(self, place: str) -> None:
        """Connect to rank 0, which hears of every rank that ends; all ranks hear of rank 0's end."""
        host, _, port = place.rpartition(":")
        if self.rank:
            line = self.connected(host, int(port))
            line.sendall(self.rank.to_bytes(4, "big"))
            threading.Thread(target=self.watch, args=(line, 0), daemon=True).start()
            self.lines = [line]
            return
        self.lines = []
        door = socket.create_server(("", int(port)), backlog=self.world_size)
        threading.Thread(target=self.let_in, args=(door,), daemon=True).start()

    def connected(self, host: str, port: int) -> socket.socket:
        """Connect to rank 0, which may start later."""
        until = time.monotonic() + _COME
        while True:
            try:
                line = socket.create_connection((host, port), timeout=5)
            except OSError as error:
                if time.monotonic() > until:
                    why = f"rank 0, at {host}:{port}, was not reached for {_COME} s: {error}"
                    common.fail(self.nonce, why, common.UNREACHED)
                time.sleep(0.2)
            else:
                line.settimeout(None)
                return line

    def let_in(self, door: socket.socket) -> None:
        door.settimeout(_COME)
        while len(self.lines) < self.world_size - 1:
            try:
                line, _ = door.accept()
            except TimeoutError:
                found = f"{len(self.lines) + 1} of {self.world_size} workers"
                self.stop(f"only {found} of the KVStore came within {_COME} s", common.UNREACHED)
            line.settimeout(None)
            other = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")
            self.lines.append(line)
            threading.Thread(target=self.watch, args=(line, other), daemon=True).start()

    def watch(self, line: socket.socket, other: int) -> None:
        """End this rank if another ends without a farewell."""
        try:
            farewell = line.recv(1)
        except OSError:
            farewell = b""
        if farewell != _BYE:
            self.stop(
                f"the KVStore lost its worker of rank {other}, which ended before the others",
                "the last words of that rank are in the report",
            )

    def stop(self, error: str, remedy: str) -> None:
        """Answer with an error, and end: the thread that waits in the KVStore cannot be interrupted."""
        error = f"rank {self.rank}: {error}"
        common.say(self.nonce, error=error, remedy=remedy, rank=self.rank, world_size=self.world_size)
        os._exit(1)

    def total(self, key: int, array):
        """Push an array, and pull the sum of those of all workers."""
        self.store.push(key, array)
        result = self.mx.nd.empty(array.shape, dtype=array.dtype)
        self.store.pull(key, out=result)
        result.wait_to_read()
        return result

    def barrier(self) -> None:
        # What was pushed and pulled goes on behind Python's back.
        self.mx.nd.waitall()
        # MXNet has no other name for it.
        self.store._barrier()  # noqa: SLF001

    def end(self) -> None:
        """Leave together. The scheduler and the server end when the last worker has left."""
        self.barrier()
        for line in self.lines:
            line.sendall(_BYE)
        del self.store
        until = time.monotonic() + _END
        for role, process in self.others.items():
            try:
                code = process.wait(max(until - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                common.fail(self.nonce, f"the KVStore's {role} goes on {_END} s after its last worker")
            if code:
                common.fail(self.nonce, f"the KVStore's {role} ended with {code}")
        leave()


def started(role: str) -> subprocess.Popen[bytes]:
    """Start the scheduler or the server, which ends with this rank. MXNet becomes it when it is imported."""
    program = (
        f"import ctypes; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); import mxnet"
    )
    # The server never sets its flag for mixed precision (`multi_precision_` in kvstore_dist_server.h). If it
    # happens to be true, the server rounds double precision to single. So memory has to begin as zeros.
    zeros = {"MALLOC_PERTURB_": "255", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    env = {**os.environ, "DMLC_ROLE": role, **zeros}
    return subprocess.Popen((sys.executable, "-c", program), env=env)
