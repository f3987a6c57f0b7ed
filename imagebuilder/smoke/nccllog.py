"""What NCCL says of itself with NCCL_DEBUG=INFO: which way the tensors went. Pure: text in, values out.

Lines are meant as NCCL 2.4 to 2.28 write them (src/bootstrap.cc, src/init.cc, src/transport/net.cc), and for
OFI the plugin aws-ofi-nccl. What is not there is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The name of a network plugin says what it goes over: NCCL's own are Socket and IB; NVIDIA's plugin calls
# itself IBext, IBext_v8 and so on; that of AWS was AWS Libfabric and is Libfabric.
_KINDS = (
    (r"socket", "socket"),
    (r"ib(ext.*)?", "ib"),
    (r"(aws )?libfabric|ofi", "ofi"),
)

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_BOOTSTRAP = re.compile(r"NCCL INFO Bootstrap ?: Using ([^:\s]+):([0-9A-Fa-f.:]+?)(?:%\S+?)?<\d+>")
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
# `Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0`; up to 2.4 `Ring 00 : 0 -> 1 [send] via ...`.
_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring) [0-9/]+ : (\d+)(?:\[[^\]]*\])? -> (\d+)(?:\[[^\]]*\])?"
    r"(?: \[(?:send|receive)\])? via (\S.*?)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How one rank reaches another: NET, P2P or SHM; the network's name; whether GPUs are read directly."""

    source: int
    target: int
    transport: str
    network: str
    direct: bool


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """What one rank's NCCL said.

    Attributes:
        version: its own.
        interface, address: what the ranks met over, before any network was chosen.
        network: the plugin that it took for the tensors.
        provider: the fabric that OFI took.
        ways: how ranks reach each other, each once.

    """

    version: str
    interface: str
    address: str
    network: str
    provider: str
    ways: tuple[Way, ...]


def parse(text: str) -> NcclLog:
    """Read the log of one rank."""
    bootstrap = _BOOTSTRAP.search(text)
    version, network, provider = (pattern.search(text) for pattern in (_VERSION, _NETWORK, _PROVIDER))
    ways = {
        _way(int(found[1]), int(found[2]), found[3]): None for found in _CHANNEL.finditer(text)
    }  # in the order of the log, each once
    return NcclLog(
        version=version[1] if version else "",
        interface=bootstrap[1] if bootstrap else "",
        address=bootstrap[2] if bootstrap else "",
        network=network[1] if network else "",
        provider=provider[1] if provider else "",
        ways=tuple(ways),
    )


def kind(network: str) -> str:
    """Say what a network plugin goes over: `socket`, `ib` or `ofi`; its own name where that is not known.

    >>> kind("Socket"), kind("IBext_v8"), kind("AWS Libfabric"), kind("Else")
    ('socket', 'ib', 'ofi', 'Else')
    """
    return next((name for pattern, name in _KINDS if re.fullmatch(pattern, network, re.IGNORECASE)), network)


def _way(source: int, target: int, via: str) -> Way:
    """Read `NET/IB/2(3)/GDRDMA`, `P2P/CUMEM`, `SHM/direct/direct`; a network's name may hold spaces."""
    transport, _, rest = via.partition("/")
    network = rest.partition("/")[0] if transport == "NET" else ""
    return Way(
        source=source,
        target=target,
        transport=transport,
        network=network,
        direct=transport == "NET" and rest.endswith("/GDRDMA"),
    )
