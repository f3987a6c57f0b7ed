"""mpirun over all nodes, with a sum that must be exact."""

from __future__ import annotations

from imagebuilder.smoke.checks import hostname_reason
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 60

# Warnings after which Open MPI goes on, although something is wrong (ompi #7368, #4948).
_COMPLAINTS = {
    "tried to bind": "the ranks cannot be bound to cores here; in the recipe's `env:` set "
    "OMPI_MCA_hwloc_base_binding_policy (4.x) or PRTE_MCA_hwloc_default_binding_policy (5.x) to `none`",
    "Read -1": "one process may not read another's memory here; in the recipe's `env:` set "
    "OMPI_MCA_btl_vader_single_copy_mechanism (4.x) to `none` or OMPI_MCA_smsc (5.x) to `^cma`",
}
# Error messages and what they mean; the first match counts.
_REMEDIES = {
    "orted: command not found": "the other node's shell does not find orted: `PATH` is lost over ssh",
    "prted: command not found": "the other node's shell does not find prted: `PATH` is lost over ssh",
    "as root": "mpirun refuses root; the catalog's openmpi sets OMPI_ALLOW_RUN_AS_ROOT for that",
    "Host key verification failed": "see the check `ssh`",
    "Permission denied": "see the check `ssh`",
    "Connection refused": "see the check `ssh`",
    "unable to find the specified executable": "`PATH` is lost on another node; see the check `environment`",
    "not enough slots": "is a default hostfile in the image in the way?",
}


def run(session: Session) -> Passed:
    starter = session.mpi_starter
    outcome = session.mpi(*session.script("mpi_sum.py"), timeout=_SECONDS)
    output = outcome.stderr + outcome.stdout
    if not outcome.ok and not any(entry.get("error") for entry in session.said(outcome)):
        why = "did not end in time" if outcome.timed_out else f"ended with {outcome.code}"
        remedy = next((text for sign, text in _REMEDIES.items() if sign in output), "")
        raise CheckFailed(
            f"{starter} {why}: {outcome.first_words}",
            node=outcome.node,
            remedy=remedy or "the whole output is in the report",
        )
    found = session.ranks([outcome])
    answered = sorted(str(entry["host"]) for entry in found)
    each = session.layout.nproc_per_node
    own = [session.cluster.own_name(index) for index in range(session.nnodes)]
    if answered != sorted(own * each):
        raise CheckFailed(
            f"the ranks ran on {', '.join(answered)}, not {each if each > 1 else 'one'} on each of "
            f"{', '.join(own)}",
            remedy=f"{starter} started them elsewhere than asked; its output is in the report",
        )
    for sign, remedy in _COMPLAINTS.items():
        if sign in output:
            line = next(line.strip() for line in output.splitlines() if sign in line)
            raise CheckFailed(f"{starter} works, but complains: {line}", remedy=remedy)
    return Passed(
        summary=f"{session.world_size} ranks on {len(set(answered))} hosts, exact sum through "
        f"{found[0]['through']}" + ("" if starter == "mpirun" else f", started by {starter}"),
        evidence={"ranks": [dict(entry) for entry in found]},
    )


def reason(session: Session) -> str:
    """Say why MPI cannot start ranks here; empty if it can."""
    why = hostname_reason(session)
    if not why and not session.facts.get("mpirun") and not session.target.mpi:
        why = "no MPI in this image"
    if not why and not session.target.has_ssh and session.cluster.scheduler is None:
        why = "mpirun is in this image, but no ssh and sshd, with which it starts ranks on other nodes"
    return why


CHECK = Check(
    name="mpirun",
    order=110,
    title="mpirun (in a Slurm job, srun) over all nodes, and a sum over all ranks",
    criterion="the requested number of ranks, each on its node; the sum is exact; Open MPI warns of nothing",
    run=run,
    skip=reason,
    required=lambda promise: promise.mpi,
    exchanges=True,
)
