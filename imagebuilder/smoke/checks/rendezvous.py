"""torchrun: its agents find each other by name and by address, and ranks by a shared file, or by MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import framework_reason, mpirun
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 90
NO_MPI = "torch was built without MPI backend"
# torchrun's message if an agent cannot reach the rendezvous.
_UNREACHED = "The connection to the C10d store has failed"
_UNREACHED_REMEDY = (
    "packets to that address do not arrive: does a firewall between the nodes block the port of the "
    "rendezvous?"
)


def run(session: Session) -> Passed:
    # If the nodes share a folder, as clusters often do, ranks also meet by a file in it.
    shared = session.cluster.shared
    by_file = ("--file", f"{shared}/rendezvous-{session.nonce}") if shared else ()
    by_name = _meet(session, "host name", session.cluster.host(0), *by_file)
    # By address, ranks only report their variables: importing torch once more would show nothing new.
    by_address = _meet(session, "IP address", session.cluster.address(0), "--only-told")
    by_mpi, why = _by_mpi(session) if by_name[0]["mpi"] else ((), NO_MPI)
    return Passed(
        summary=f"{session.nnodes} agents met by host name and by IP address, {session.world_size} ranks "
        f"{'by file://' if by_file else 'joined'}, {by_name[0]['backend']} over {by_name[0]['interface']}"
        + (f"; {len(by_mpi)} ranks by torch's MPI backend" if by_mpi else ""),
        evidence={
            "host name": [dict(rank) for rank in by_name],
            "IP address": [dict(rank) for rank in by_address],
            "MPI backend": why or [dict(rank) for rank in by_mpi],
        },
    )


def _by_mpi(session: Session) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Start ranks that meet by torch's MPI backend; returns them, or why MPI cannot start ranks here."""
    why = mpirun.reason(session)
    if why:
        return (), f"not tried: {why}"
    outcome = session.mpi(*session.script("hello.py", "--mpi"), timeout=_SECONDS)
    try:
        return session.ranks([outcome]), ""
    except CheckFailed as error:
        place = f"torch's MPI backend, by {session.mpi_starter}"
        raise CheckFailed.because(*(_at("MPI", place, finding) for finding in error.findings)) from error


def _meet(session: Session, way: str, place: str, *arguments: str) -> tuple[Mapping[str, Any], ...]:
    argv = session.agents("rendezvous", f"{place}:{session.cluster.port()}", *arguments)
    try:
        ranks = session.ranks(session.run_everywhere(argv, timeout=_SECONDS, env=session.rank_env))
    except CheckFailed as error:
        raise CheckFailed.because(*(_at(way, place, finding) for finding in error.findings)) from error
    hosts = sorted({str(rank["host"]) for rank in ranks})
    if session.cluster.kind != "process" and len(hosts) != session.nnodes:
        raise CheckFailed(
            f"{session.nnodes} nodes were asked, and ranks answered from {', '.join(hosts)} only"
        )
    return ranks


def _at(way: str, place: str, finding: Finding) -> Finding:
    unreached = _UNREACHED in finding.message
    return Finding(
        node=finding.node,
        message=f"meeting by {way} ({place}): {finding.message}",
        remedy=_UNREACHED_REMEDY if unreached else finding.remedy,
    )


CHECK = Check(
    name="rendezvous",
    order=120,
    title="torchrun on every node, meeting at the first one by host name and by IP address; ranks by "
    "file://, and by MPI if torch has that backend",
    criterion="all agents end with 0, all ranks are different, and they gather each other's numbers",
    run=run,
    skip=lambda session: framework_reason(session, "rendezvous"),
    required=lambda promise: promise.framework("rendezvous"),
    exchanges=True,
    reusable=True,
)
