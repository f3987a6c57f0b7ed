"""Code that the payload scripts share: arguments, the line with the answer, and the process group.

They run inside the image under test, with nothing but its own Python, torch and MPI.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from datetime import timedelta

MARKER = "@imagebuilder-smoke "
_SIOCGIFADDR = 0x8915  # linux/sockios.h
TIMEOUT = 60
UNREACHED = "does the name lead to the right node, and does a firewall between the nodes block the port?"


def parser(*, ranks: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the arguments that every script has."""
    made = argparse.ArgumentParser()
    made.add_argument("--nonce", required=True)
    if ranks:
        made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        made.add_argument("--peer", default="")
    return made


def say(nonce: str, **found: object) -> None:
    """Print the answer as one line, in one write, so that the lines of several ranks do not mix."""
    line = "\n" + MARKER + json.dumps({"nonce": nonce, "host": socket.gethostname(), **found}) + "\n"
    sys.stdout.flush()
    os.write(1, line.encode())


def fail(nonce: str, error: str, remedy: str = "", **found: object) -> None:
    """Answer with an error, and exit with 1."""
    say(nonce, error=error, remedy=remedy, **found)
    sys.exit(1)


def interface_to(peer: str) -> tuple[str, str]:
    """Return the network interface, and its address, from which packets go to a peer."""
    address = socket.gethostbyname(peer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing; the kernel picks the route
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(packed[20:24]) == own:
                return name, own
    raise OSError(f"no interface has the address {own} by which {peer} is reached")


def require_reached(nonce: str, what: str, addresses: list[str]) -> None:
    """End this rank if no connection to one of these `host:port` succeeds for a minute.

    Frameworks that wait for others often name neither whom they wait for, nor end. A process of its own
    looks, because they also hold Python's lock while they wait.
    """
    rank = os.getpid()
    if os.fork():
        return
    until = time.monotonic() + TIMEOUT
    for address in addresses:
        host, _, port = address.rpartition(":")
        while (problem := refused(host, int(port))) and time.monotonic() < until and os.getppid() == rank:
            time.sleep(0.2)
        if problem and os.getppid() == rank:
            error = f"{what} at {address} was not reached for {TIMEOUT} s: {problem}"
            say(nonce, error=error, remedy=UNREACHED)
            os.kill(rank, signal.SIGKILL)
    os._exit(0)


def refused(host: str, port: int) -> str:
    """Return why no connection can be made; empty if one can."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        return str(error)
    return ""


def join(arguments: argparse.Namespace):
    """Join the process group over the interface that leads to the peer; gives torch's module and the device.

    gloo wants one interface's name, NCCL a pattern where `=` means exactly; both would otherwise guess.
    """
    import torch
    import torch.distributed as dist

    name, _ = interface_to(arguments.peer)
    os.environ["GLOO_SOCKET_IFNAME"] = name
    os.environ["NCCL_SOCKET_IFNAME"] = "=" + name
    device = torch.device("cpu")
    cuda = arguments.device == "cuda"
    if cuda:
        device = torch.device("cuda", own_gpu(torch.cuda.device_count()))
        torch.cuda.set_device(device)
    start(dist, device)
    return torch, dist, device


def start(dist, device, **how: object) -> None:
    """Start the process group; without `how`, from the environment variables."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=TIMEOUT), **how
    )


def own_gpu(count: int) -> int:
    """Choose this rank's GPU; where there are fewer than ranks, they share, as hosts of their own.

    NCCL refuses two ranks with one GPU on what it takes for one host, and tells hosts apart by NCCL_HOSTID.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank < count:
        return local_rank
    os.environ["NCCL_HOSTID"] = f"{os.environ.get('NCCL_HOSTID') or socket.gethostname()}-{local_rank}"
    return 0


def leave(dist) -> None:
    """Leave the group together: a rank that leaves early would break the others' last messages."""
    dist.barrier()
    dist.destroy_process_group()


def end(dist) -> None:
    """Leave the group and end with 0, past Python's own end.

    `destroy_process_group` does not end a group that DistributedDataParallel has used: gloo's threads go on,
    and one that gives back a tensor while Python ends aborts the process, with exit code 134.
    """
    import ctypes

    leave(dist)
    sys.stdout.flush()
    sys.stderr.flush()
    # Flush the output of C libraries, such as NCCL's log.
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def raw(tensor) -> bytes:
    """Return a tensor's bytes without numpy, which the image may lack."""
    import ctypes

    flat = tensor.detach().to("cpu").contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
