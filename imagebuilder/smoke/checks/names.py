"""Host names: every node's own name and those of the others resolve to addresses of the test network."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import hostname_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30


def run(session: Session) -> Passed:
    hosts = [session.cluster.host(index) for index in range(session.nnodes)]
    outcomes = session.run_everywhere(lambda _: session.script("names.py", *hosts), timeout=_SECONDS)
    session.require_ok(outcomes)
    findings: list[Finding] = []
    seen = {}
    for host, outcome in zip(hosts, outcomes, strict=True):
        said = session.said(outcome)[-1]
        seen[host] = said["names"]
        findings += judge(host, said, session.cluster.subnet)
    if findings:
        raise CheckFailed.because(*findings)
    return Passed(
        summary=f"{len(hosts)} host names resolve to addresses in "
        f"{session.cluster.subnet or 'a network'} on every node",
        evidence=seen,
    )


def judge(host: str, said: Mapping[str, Any], subnet: str) -> list[Finding]:
    """Return the names that resolve to anything but an address of the test network."""
    findings = []
    if subnet and said["own"] != host:
        findings.append(
            Finding(
                node=host,
                message=f"calls itself `{said['own']}`, and the others call it `{host}`",
                remedy="something in the image sets the host name; leave that to the engine",
            )
        )
    for name, addresses in said["names"].items():
        findings += [
            _wrong(host, name, entry, subnet) for entry in addresses if not on_network(entry, subnet)
        ]
    return findings


def on_network(address: str, subnet: str) -> bool:
    """Return True if an address is in a network, or in any but the loopback if the network is unknown.

    False also for text that is not an address.

    >>> on_network("172.18.0.2", "172.18.0.0/16"), on_network("127.0.1.1", "172.18.0.0/16")
    (True, False)
    >>> on_network("10.1.2.3", ""), on_network("127.0.1.1", "")
    (True, False)
    """
    try:
        if not subnet:
            return not ipaddress.ip_address(address).is_loopback
        return ipaddress.ip_address(address) in ipaddress.ip_network(subnet)
    except ValueError:
        return False


def _wrong(node: str, name: str, entry: str, subnet: str) -> Finding:
    if entry.startswith("!"):
        return Finding(
            node=node,
            message=f"`{name}` cannot be resolved:{entry[1:]}",
            remedy="the engine's name service does not answer; with Podman install aardvark-dns and netavark",
        )
    loopback = entry.startswith("127.") or entry == "::1"
    return Finding(
        node=node,
        message=f"`{name}` means {entry}, " + ("the loopback" if loopback else f"which is not in {subnet}"),
        remedy="ranks would advertise an address where nobody reaches them: /etc/hosts and nsswitch.conf of "
        "the image must not name the host itself",
    )


CHECK = Check(
    name="names",
    order=80,
    title="all nodes' host names, resolved on each node",
    criterion="every node's name resolves, on every node, to addresses of the test network only",
    run=run,
    skip=hostname_reason,
    required=lambda promise: promise.contained,
)
