"""Parse NCCL's log (NCCL_DEBUG=INFO): which networks the tensors used. Pure: text in, values out.

The lines are those of NCCL 2.4 to 2.28 (src/bootstrap.cc, src/init.cc, src/transport/net.cc) and of the
plugin aws-ofi-nccl. A value that the log does not have is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The name of a network plugin tells the network: NCCL's own plugins are Socket and IB, NVIDIA's is IBext,
# IBext_v8 and so on, and that of AWS is Libfabric, formerly AWS Libfabric.
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
    """What NCCL logged on one rank.

    Attributes:
        version: of NCCL.
        interface, address: used for the first contact between ranks, before a network is chosen.
        network: the plugin for the tensors.
        provider: the fabric that OFI uses.
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
    """Return the network that a plugin uses: `socket`, `ib` or `ofi`; for an unknown plugin its name.

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
