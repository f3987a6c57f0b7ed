"""Limits of processes: shared memory, locked memory, open files; not lower through ssh and mpirun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session
from imagebuilder.smoke.target import GIB

_SECONDS = 30
_NOFILE = 1024
_MIB = 1 << 20
_KEYS = ("shm", "memlock", "nofile", "rdma")


def run(session: Session) -> Passed:
    direct = {
        node.name: _said(session, outcome)
        for node, outcome in zip(session.nodes, _directly(session), strict=True)
    }
    findings = [finding for node, said in direct.items() for finding in judge(node, said)]
    last = session.nodes[-1].name
    # If ssh or mpirun do not work at all, their own checks report it.
    remote = {way: said for way, outcome in _remotely(session).items() if (said := _said(session, outcome))}
    for way, said in remote.items():
        findings += compare(last, way, direct[last], said)
    if findings:
        raise CheckFailed.because(*findings)
    first = direct[session.nodes[0].name]
    ways = f"; not lower through {' and '.join(remote)}" if remote else ""
    return Passed(
        summary=f"shared memory {first['shm'] // _MIB} MiB, locked memory {_amount(first['memlock'])} bytes, "
        f"{_amount(first['nofile'])} open files{ways}",
        evidence={**direct, **{f"{last} through {way}": said for way, said in remote.items()}},
    )


def judge(node: str, said: Mapping[str, Any]) -> list[Finding]:
    """Return the limits of a node that are too low."""
    if not said:
        return [Finding(node=node, message="the limits cannot be read", remedy="the output is in the report")]
    findings = []
    if said["shm"] < GIB:
        findings.append(
            Finding(
                node=node,
                message=f"shared memory has {said['shm'] // _MIB} MiB, and NCCL and data loaders need 1 GiB",
                remedy="start containers with `docker run --shm-size=1g`; in Kubernetes mount an `emptyDir` "
                "with `medium: Memory` at /dev/shm",
            )
        )
    if 0 <= said["nofile"] < _NOFILE:
        findings.append(
            Finding(
                node=node,
                message=f"only {said['nofile']} files may be open, and {_NOFILE} are needed",
                remedy="start containers with `docker run --ulimit nofile=65536:65536`",
            )
        )
    if said["rdma"] and said["memlock"] != -1:
        findings.append(
            Finding(
                node=node,
                message=f"RDMA devices are there, but only {said['memlock'] // 1024} KiB may be locked",
                remedy="start containers with `docker run --ulimit memlock=-1:-1`",
            )
        )
    return findings


def compare(node: str, way: str, direct: Mapping[str, Any], remote: Mapping[str, Any]) -> list[Finding]:
    """Return the limits that are lower for processes started through ssh or mpirun."""
    findings = []
    for key, what in (("memlock", "locked memory"), ("nofile", "open files")):
        here, there = direct.get(key), remote[key]
        if here is not None and there != -1 and (here == -1 or there < here):
            findings.append(
                Finding(
                    node=node,
                    message=f"through {way} the limit of {what} is {there}, in the container itself "
                    f"{_amount(here)}",
                    remedy="PAM's limits.conf, or a limit of sshd itself, lowers it: ranks that are started "
                    "remotely get less than the container was given",
                )
            )
    return findings


def _directly(session: Session) -> tuple[Outcome, ...]:
    return session.run_everywhere(lambda _: session.script("limits.py"), timeout=_SECONDS)


def _remotely(session: Session) -> dict[str, Outcome]:
    """Ask the last node from the first, in each way that ranks are started."""
    if session.cluster.kind == "process":
        return {}
    last = session.cluster.host(session.nnodes - 1)
    script = session.script("limits.py")
    if session.cluster.scheduler is not None and not session.target.has_ssh:
        return {}
    ways = {"ssh": session.ssh(last, *script)}
    if session.cluster.scheduler is None:
        ways["mpirun"] = session.mpirun([last], *script)
    return {
        way: session.run(0, argv, timeout=_SECONDS) for way, argv in ways.items() if session.facts.get(way)
    }


def _said(session: Session, outcome: Outcome) -> Mapping[str, Any]:
    said = session.said(outcome) if outcome.ok else ()
    return {key: said[-1][key] for key in _KEYS} if said else {}


def _amount(value: int) -> str:
    return "unlimited" if value == -1 else str(value)


CHECK = Check(
    name="limits",
    order=60,
    title="shared memory, locked memory and open files, directly and through ssh and mpirun",
    criterion=f"at least 1 GiB of shared memory and {_NOFILE} open files on every node; unlimited locked "
    "memory where there are RDMA devices; nothing lower through ssh or mpirun",
    run=run,
)
