"""torchrun: the nodes' agents find each other, by name and by address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import torch_pinned, torch_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 90


def run(session: Session) -> Passed:
    # By address the ranks only say what they were told: importing torch in them again would show nothing new.
    by_name = _meet(session, "host name", session.cluster.host(0))
    by_address = _meet(session, "IP address", session.cluster.address(0), "--only-told")
    return Passed(
        summary=f"{session.size} agents met by host name and by IP address, {by_name[0]['backend']} over "
        f"{by_name[0]['interface']}",
        evidence={
            "host name": [dict(rank) for rank in by_name],
            "IP address": [dict(rank) for rank in by_address],
        },
    )


def _meet(session: Session, way: str, place: str, *arguments: str) -> tuple[Mapping[str, Any], ...]:
    options = (
        f"--nnodes={session.size}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={place}:{session.cluster.port()}",
        # This run's: agents of another job at the same place are refused.
        f"--rdzv-id={session.nonce}",
        "--max-restarts=0",
    )

    def argv(index: int) -> tuple[str, ...]:
        script = session.script(
            "hello.py", "--device", session.device, "--peer", session.peer(index), *arguments
        )
        # Without the interpreter in front: torchrun starts its own.
        return (*session.cluster.torchrun, *options, *script[len(session.cluster.python) :])

    try:
        ranks = session.ranks(session.run_everywhere(argv, timeout=_SECONDS, env=session.rank_env))
    except CheckFailed as error:
        raise CheckFailed.because(*(_at(way, place, finding) for finding in error.findings)) from error
    hosts = sorted({str(rank["host"]) for rank in ranks})
    if session.cluster.kind != "process" and len(hosts) != session.size:
        raise CheckFailed(f"{session.size} ranks answered from {', '.join(hosts)} only")
    return ranks


def _at(way: str, place: str, finding: Finding) -> Finding:
    return Finding(
        node=finding.node, message=f"meeting by {way} ({place}): {finding.message}", remedy=finding.remedy
    )


CHECK = Check(
    name="rendezvous",
    title="torchrun on every node, meeting at the first one by host name and by IP address",
    criterion="all agents end with 0, every rank is of its own, and they gather each other's numbers",
    run=run,
    skip=torch_reason,
    required=torch_pinned,
    exchanges=True,
)
