"""The transport: what NCCL itself says that the tensors went over, on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.checks.names import on_network
from imagebuilder.smoke.nccllog import NcclLog, kind, parse
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 180
# Without subsystems NCCL's INFO leaves out what it chose for the channels.
_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,P2P"

_REMEDIES = {
    "ib": "NCCL found no usable InfiniBand device: give containers /dev/infiniband and `--ulimit "
    "memlock=-1:-1`, put rdma-core into the image (`apt:`), and look for NCCL_IB_DISABLE and NCCL_NET",
    "ofi": "NCCL did not load or not take the OFI plugin: put aws-ofi-nccl and libfabric into the image "
    "where the loader finds libnccl-net.so, and give containers the fabric's devices",
    "socket": "NCCL took a faster network than asked for; without --transport any will do",
}


def run(session: Session) -> Passed:
    outcomes = session.start(
        session.payload("transport"), timeout=_SECONDS, env={"NCCL_DEBUG_SUBSYS": _SUBSYSTEMS}
    )
    session.ranks(outcomes)
    logs = {int(outcome.rank or 0): parse(outcome.stdout + outcome.stderr) for outcome in outcomes}
    nodes = {rank: session.node_of(rank) for rank in logs}
    findings = judge(logs, nodes, expected(session), session.cluster.subnet)
    if findings:
        raise CheckFailed.because(*findings)
    first = logs[0]
    over = f"{first.network}{f' ({first.provider})' if first.provider else ''}"
    direct = all(way.direct for log in logs.values() for way in log.ways if way.transport == "NET")
    return Passed(
        summary=f"NCCL {first.version} over {over}{', GPUs read directly' if direct else ''}; ranks met over "
        f"{first.interface}",
        evidence={nodes[rank] + f" rank {rank}": _shown(log) for rank, log in logs.items()},
    )


def expected(session: Session) -> str:
    """Name the transport that has to be used: as asked for; sockets where all ranks share a GPU."""
    if session.options.transport != "any":
        return session.options.transport
    return "socket" if session.mode == "one-gpu-shared" else "any"


def judge(logs: Mapping[int, NcclLog], nodes: Mapping[int, str], wanted: str, subnet: str) -> list[Finding]:
    """Say what is wrong with the ways that ranks took; logs and names of nodes are by rank."""
    findings = []
    for rank, log in logs.items():
        if not log.network or not log.address:
            remedy = "NCCL_DEBUG or NCCL_DEBUG_FILE in the image's environment sends its words elsewhere"
            message = f"rank {rank}: NCCL does not say what it used"
            findings.append(Finding(node=nodes[rank], message=message, remedy=remedy))
            continue
        if not on_network(log.address, subnet):
            message = f"rank {rank}: NCCL's ranks met over {log.interface}, {log.address}, not over {subnet}"
            remedy = "leave NCCL_SOCKET_IFNAME to the job: in the image it names an interface of another host"
            findings.append(Finding(node=nodes[rank], message=message, remedy=remedy))
        if wanted not in ("any", kind(log.network)):
            message = f"rank {rank}: NCCL uses the network {log.network}, and {wanted} is expected"
            findings.append(Finding(node=nodes[rank], message=message, remedy=_REMEDIES[wanted]))
        findings += _between_nodes(rank, log, nodes)
    networks = {log.network for log in logs.values() if log.network}
    if len(networks) > 1:
        said = ", ".join(f"rank {rank} {log.network or 'none'}" for rank, log in sorted(logs.items()))
        remedy = (
            "one node lacks devices or libraries that the others have: libibverbs, /dev/infiniband, a plugin"
        )
        findings.append(Finding(node="", message=f"the ranks use different networks: {said}", remedy=remedy))
    return findings


def _between_nodes(rank: int, log: NcclLog, nodes: Mapping[int, str]) -> list[Finding]:
    """Say which ways from one node to another do not go over the network."""
    wrong = {
        way.transport
        for way in log.ways
        if nodes.get(way.source) != nodes.get(way.target) and way.transport != "NET"
    }
    return [
        Finding(
            node=nodes[rank],
            message=f"rank {rank}: NCCL reaches another node through {transport}, not over the network",
            remedy="it takes both nodes for one host: their host names, or NCCL_HOSTID, are the same",
        )
        for transport in sorted(wrong)
    ]


def _shown(log: NcclLog) -> Mapping[str, object]:
    return {
        "version": log.version,
        "bootstrap": f"{log.interface} {log.address}",
        "network": log.network,
        "provider": log.provider,
        "channels": _ways(log),
    }


def _ways(log: NcclLog) -> Sequence[str]:
    return [
        f"{way.source} -> {way.target}: {way.transport} {way.network}{' GDRDMA' if way.direct else ''}"
        for way in log.ways
    ]


def _skip(session: Session) -> str:
    if session.mode == "cpu":
        return "no GPU here, so NCCL is not used"
    return framework_reason(session, "transport")


CHECK = Check(
    name="transport",
    order=140,
    title="NCCL's own log of an allreduce of 16 MiB, on every rank",
    criterion="all ranks use the same network, --transport where that is given; they met at addresses of the "
    "test network; nothing goes from node to node past the network",
    run=run,
    skip=_skip,
    required=lambda promise: promise.framework("transport") and promise.mode != "cpu",
    # Who names a transport wants to know, and without GPUs that cannot be told.
    asked=lambda session: session.options.transport != "any",
)
