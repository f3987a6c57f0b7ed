"""Parse NCCL's log (NCCL_DEBUG=INFO): which networks the tensors used. Pure: text in, values out.

The lines are those of NCCL 2.3 to 2.29 (src/bootstrap.cc, src/init.cc, src/transport/net.cc, p2p.cc, shm.cc)
and of its network plugins; tests/cases/nccl-logs has excerpts. A value that the log does not have is empty.
An image may log anything: a line counts up to 500 characters, and the lists have a largest length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The name of a network plugin tells the network: NCCL's own plugins are Socket and IB; NVIDIA's is IBext,
# IBext_v8 and so on, or by its long name; Google's for RoCE is gIB; that of AWS is Libfabric, formerly
# AWS Libfabric, and OFI where others build it.
_KINDS = (
    (r"socket", "socket"),
    (r"ib(ext.*)?|gib|nccl rdma plugin.*", "ib"),
    (r"(aws )?libfabric|ofi", "ofi"),
)

_LONGEST_LINE = 500
_MOST_LINES = 200_000
_MOST_WAYS = 4096
_MOST_GPUS = 64

_ADDRESS = r"([^:\s\[\]]{1,64}):([0-9A-Fa-f.:]{1,64}?)(?:%\S{1,64}?)?<[0-9]+>"
_VERSION = re.compile(r"NCCL version ([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})")
_BOOTSTRAP = re.compile(r"NCCL INFO Bootstrap ?: Using (?:\[[0-9]{1,4}\])?" + _ADDRESS)
# Up to 2.4.7, the ranks met over what these lines name.
_EARLY_BOOTSTRAP = re.compile(r"NCCL INFO NET(?:/Socket)? : Using (?:\[0\]|interface )" + _ADDRESS)
_NETWORK = re.compile(r"NCCL INFO Using (?:internal N|n)etwork (\S.{0,99}?)\s*$")
# Up to 2.6, nothing else names the network where no connection needs one.
_EARLY_NETWORK = re.compile(r"NCCL INFO NET/([A-Za-z]{1,20}) ?: (?:Using )?\[0\]")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]{1,64})")
_GPU = re.compile(r"\[([0-9]{1,4})\] NCCL INFO ")
# `Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0`; up to 2.5 `Ring 00 : 0 -> 1 [send] via ...`.
_CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring) [0-9/]+ : ([0-9]{1,9})(?:\[\w*\])? -> ([0-9]{1,9})(?:\[\w*\])?"
    r"(?: \[(?:send|receive)\])? via (\S.*?)\s*$"
)
# `IB/2(3)/GDRDMA(PCI)/Shared`: plugin, device, the rank of this node that relays (PXN), and how.
_NET = re.compile(r"(.+?)/[0-9]{1,9}(?:\(([0-9]{1,9})\))?((?:/GDRDMA)?)((?:\([A-Z0-9]{1,9}\))*)(?:/Shared)?")


@dataclass(frozen=True, kw_only=True)
class Way:
    """How one rank reaches another.

    Attributes:
        source, target: the ranks.
        transport: NET, P2P or SHM; MNNVL is NVLink between nodes.
        network: the plugin's name, if the transport is NET.
        direct: the network reads and writes GPU memory itself.
        relayed: another GPU of the node, near to the network device, passes the data on (PXN).

    """

    source: int
    target: int
    transport: str
    network: str
    direct: bool
    relayed: bool = False


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """What NCCL logged in one process.

    Attributes:
        version: of NCCL.
        interface, address: used for the first contact between ranks, before a network is chosen.
        network: the plugin for the tensors.
        provider: the fabric that OFI uses.
        gpus: the CUDA devices that the process uses, by number; more than one if it is several ranks.
        ways: how ranks reach each other, each once.

    """

    version: str
    interface: str
    address: str
    network: str
    provider: str
    gpus: tuple[int, ...]
    ways: tuple[Way, ...]


def parse(text: str) -> NcclLog:
    """Read the log of one process."""
    first: dict[re.Pattern[str], re.Match[str]] = {}
    networks: dict[str, None] = {}
    gpus: set[int] = set()
    ways: dict[Way, None] = {}
    for line in _lines(text):
        for pattern in (_VERSION, _BOOTSTRAP, _EARLY_BOOTSTRAP, _NETWORK, _PROVIDER):
            if pattern not in first and (match := pattern.search(line)):
                first[pattern] = match
        if match := _EARLY_NETWORK.search(line):
            networks[match[1]] = None
        if len(gpus) < _MOST_GPUS and (match := _GPU.search(line)):
            gpus.add(int(match[1]))
        if len(ways) < _MOST_WAYS and (match := _CHANNEL.search(line)):
            ways[_way(int(match[1]), int(match[2]), match[3])] = None
    version, provider = first.get(_VERSION), first.get(_PROVIDER)
    bootstrap = first.get(_BOOTSTRAP) or first.get(_EARLY_BOOTSTRAP)
    return NcclLog(
        version=version[1] if version else "",
        interface=bootstrap[1] if bootstrap else "",
        address=bootstrap[2] if bootstrap else "",
        network=_network(first.get(_NETWORK), tuple(ways), tuple(networks)),
        provider=provider[1] if provider else "",
        gpus=tuple(sorted(gpus)),
        ways=tuple(ways),
    )


def kind(network: str) -> str:
    """Return the network that a plugin uses: `socket`, `ib` or `ofi`; for an unknown plugin its name.

    >>> kind("Socket"), kind("IBext_v8"), kind("gIB"), kind("AWS Libfabric"), kind("Else")
    ('socket', 'ib', 'ib', 'ofi', 'Else')
    """
    return next((name for pattern, name in _KINDS if re.fullmatch(pattern, network, re.IGNORECASE)), network)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that NCCL wrote, cut to a largest length and number."""
    kept = 0
    for match in re.finditer(r"[^\n]+", text):
        line = match[0][:_LONGEST_LINE]
        if "NCCL" in line or "NET/OFI" in line:
            kept += 1
            yield line
        if kept == _MOST_LINES:
            return


def _network(said: re.Match[str] | None, ways: tuple[Way, ...], early: tuple[str, ...]) -> str:
    """Return the plugin for the tensors: the one that NCCL names, else one in use, else the best found."""
    if said:
        return said[1]
    used = next((way.network for way in ways if way.transport == "NET"), "")
    # An old NCCL also names the sockets over which the ranks meet.
    return used or next((name for name in early if name != "Socket"), "Socket" if early else "")


def _way(source: int, target: int, via: str) -> Way:
    """Read `NET/IB/2(3)/GDRDMA`, `P2P/CUMEM`, `SHM/direct/direct`; a network's name may hold spaces."""
    transport, _, rest = via.partition("/")
    if transport == "NET":
        match = _NET.fullmatch(rest)
        name, relay, direct, how = match.groups() if match else (rest.partition("/")[0], None, "", "")
        relayed = relay is not None or "(PXN)" in how
        return Way(
            source=source,
            target=target,
            transport=transport,
            network=name,
            direct=bool(direct),
            relayed=relayed,
        )
    if rest.startswith("MNNVL"):
        transport = "MNNVL"
    if via == "direct shared memory":  # the words of releases up to 2.11
        transport = "SHM"
    return Way(source=source, target=target, transport=transport, network="", direct=False)
