"""A rank is killed in the middle of a job: the job must end with an error and leave no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuilder import catalog
from imagebuilder.smoke.checks import login_reason
from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

# Seconds from the start of the job. Gloo notices at once that a peer has ended, NCCL's watchdog in a minute.
_LIMIT = {"cpu": 60, "cuda": 180}
_VANISH_SECONDS = 10
_SECONDS = 30


def run(session: Session) -> Passed:
    findings: list[Finding] = []
    seconds: dict[str, float] = {}
    if session.installed("failure"):
        launcher, script = session.launcher("failure").command[0], session.payload("failure")
        place = f"{session.cluster.host(0)}:{session.cluster.port()}"
        argv = session.agents("failure", place)
        limit = _LIMIT[session.device]
        # The other ranks get the whole time: the check is whether they end by themselves.
        outcomes = session.run_everywhere(argv, timeout=limit, env=session.rank_env, grace=limit)
        findings += _judged(session, launcher, outcomes, script, session.world_size)
        seconds[launcher] = round(max(outcome.seconds for outcome in outcomes), 1)
    if _has_mpirun(session):
        starter = session.mpi_starter
        outcome = session.mpi(*session.script("mpi_victim.py"), timeout=_LIMIT["cpu"])
        findings += _judged(session, starter, [outcome], "mpi_victim.py", session.world_size)
        seconds[starter] = round(outcome.seconds, 1)
    if findings:
        raise CheckFailed.because(*findings)
    times = ", ".join(f"{launcher} after {time} s" for launcher, time in seconds.items())
    return Passed(
        summary=f"rank 1 was killed, and every launcher ended with an error ({times}) and left no process",
        evidence={"seconds": seconds},
    )


def judge(
    launcher: str, outcomes: Sequence[Outcome], reached: Sequence[int], world_size: int
) -> list[Finding]:
    """Return what is wrong with how a job ended after rank 1 was killed; `reached`: ranks that had begun."""
    first = outcomes[0]
    if sorted(reached) != list(range(world_size)):
        failed = next((o for o in outcomes if not o.ok and o.code is not None), first)
        why = failed.first_words if launcher in {"mpirun", "srun"} else failed.last_words
        return [
            Finding(
                node=first.node,
                message=f"{launcher}: the job ended, or hung, before rank 1 was to be killed: {why}",
                remedy="see the checks `rendezvous` and `mpirun`, which start the same kind of job",
            )
        ]
    findings = []
    for outcome in outcomes:
        if outcome.timed_out or outcome.code is None:
            findings.append(
                Finding(
                    node=outcome.node,
                    message=f"{launcher}: rank 1 was killed, and {outcome.seconds:.0f} s after the start the "
                    "job still hung",
                    remedy="a dead rank would block the whole job and its GPUs forever: look for a setting "
                    "that turns off torch's error handling (TORCH_NCCL_ASYNC_ERROR_HANDLING=0)",
                )
            )
        elif outcome.code == 0:
            findings.append(
                Finding(
                    node=outcome.node,
                    message=f"{launcher}: rank 1 was killed, and the launcher ended with 0",
                    remedy="a scheduler would believe that the job is done: does a wrapper around the "
                    "launcher lose its exit code?",
                )
            )
    return findings


def judge_left(launcher: str, left: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Return the processes of the job that still run, by node."""
    return [
        Finding(
            node=node,
            message=f"{launcher}: {_VANISH_SECONDS} s after the job's end {len(found)} of its processes "
            f"still run{'s' if len(found) == 1 else ''}: {found[0]}",
            remedy="they would block GPUs and ports for the next job; is the container's first process an "
            "init that reaps, such as tini?",
        )
        for node, found in left.items()
        if found
    ]


def _judged(
    session: Session, launcher: str, outcomes: Sequence[Outcome], script: str, world_size: int
) -> list[Finding]:
    reached = [said["rank"] for outcome in outcomes for said in session.said(outcome) if said.get("reached")]
    search = session.script("orphans.py", "--script", script, "--seconds", _VANISH_SECONDS)
    answers = session.run_everywhere(lambda _: search, timeout=_SECONDS)
    session.require_ok(answers)
    left = {answer.node: session.said(answer)[-1]["left"] for answer in answers}
    return [*judge(launcher, outcomes, reached, world_size), *judge_left(launcher, left)]


def _has_mpirun(session: Session) -> bool:
    started = session.cluster.scheduler is not None or not login_reason(session)
    return started and bool(session.facts.get("mpirun"))


def _skip(session: Session) -> str:
    if session.installed("failure") or _has_mpirun(session):
        return ""
    launchers = [each.launcher.command[0] for each in catalog.frameworks("failure").values() if each.launcher]
    return f"neither {' nor '.join((*launchers, 'mpirun'))} can be used here"


CHECK = Check(
    name="failure",
    order=190,
    title="rank 1 is killed in the middle of a torchrun job and of an mpirun job",
    criterion=f"every launcher ends by itself, not with 0, within {_LIMIT['cpu']} s ({_LIMIT['cuda']} s on "
    f"GPUs); {_VANISH_SECONDS} s later no process of the job is left",
    run=run,
    skip=_skip,
    required=lambda promise: promise.mpi or promise.framework("failure"),
    asked=lambda session: not _skip(session),
    reusable=True,
)
