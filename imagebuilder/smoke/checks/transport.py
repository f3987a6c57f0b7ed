"""The transport: which network NCCL used on every rank, according to its own log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.checks.names import on_network
from imagebuilder.smoke.nccllog import NcclLog, kind, parse
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 180
# Without these subsystems, NCCL does not log the transport of its channels.
_SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,P2P"

# The transports that NCCL may use between nodes; MNNVL is NVLink between nodes.
_ACROSS = ("NET", "MNNVL")

_REMEDIES = {
    "ib": "NCCL found no usable InfiniBand device: give containers /dev/infiniband and `--ulimit "
    "memlock=-1:-1`, put rdma-core into the image (`apt:`), and look for NCCL_IB_DISABLE and NCCL_NET",
    "ofi": "NCCL did not load or not take the OFI plugin: put aws-ofi-nccl and libfabric into the image "
    "where the loader finds libnccl-net.so, and give containers the fabric's devices",
    "socket": "NCCL used a faster network than requested; leave out --transport to allow any",
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
    """Return the required transport: the requested one; sockets if all ranks share a GPU."""
    if session.options.transport != "any":
        return session.options.transport
    return "socket" if session.mode == "one-gpu-shared" else "any"


def judge(logs: Mapping[int, NcclLog], nodes: Mapping[int, str], wanted: str, subnet: str) -> list[Finding]:
    """Return what is wrong with the transports; logs and names of nodes are by rank."""
    findings = []
    for rank, log in logs.items():
        if not log.network or not log.address:
            remedy = "NCCL_DEBUG or NCCL_DEBUG_FILE in the image's environment redirects its log"
            message = f"rank {rank}: NCCL's log does not name its transport"
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
    """Return connections between nodes that do not use the network."""
    wrong = {
        way.transport
        for way in log.ways
        if nodes.get(way.source) != nodes.get(way.target) and way.transport not in _ACROSS
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
        "gpus": log.gpus,
        "channels": _ways(log),
    }


def _ways(log: NcclLog) -> Sequence[str]:
    return [
        f"{way.source} -> {way.target}: {way.transport} {way.network}{' GDRDMA' if way.direct else ''}"
        f"{' PXN' if way.relayed else ''}"
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
    criterion="all ranks use the same network, that of --transport if given; they met at addresses of the "
    "test network; no connection between nodes bypasses it",
    run=run,
    skip=_skip,
    required=lambda promise: promise.framework("transport") and promise.mode != "cpu",
    # With --transport the check is required, and without GPUs it cannot run.
    asked=lambda session: session.options.transport != "any",
)
