"""The user's own command (`checks: {training: ...}`), as every rank of a job on all nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from imagebuilder.recipe.checks import METRIC_LINE, TrainingCheck
from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session
from imagebuilder.smoke.verdict import OWN_TRAINING as NAME

# The payload enforces the recipe's limit. This is what launchers and containers may need besides.
_MARGIN = 30
_SIGNALS = {number.value: number.name for number in signal.Signals}


def run(session: Session) -> Passed:
    asked = session.target.training
    if asked is None:
        raise CheckFailed("the recipe names no command")
    outcomes = _outcomes(session, asked)
    answers = [said for outcome in outcomes for said in session.said(outcome) if "code" in said]
    findings = judge(asked, answers, session.world_size)
    if findings:
        raise CheckFailed.because(*findings, evidence=_evidence(asked, answers))
    ranks = session.ranks(outcomes)
    found = metrics(ranks)
    told = "".join(f"; {name} {value:g}" for name, value in found.items())
    slowest = max(float(entry["seconds"]) for entry in ranks)
    return Passed(
        summary=f"{len(ranks)} ranks of `{asked.command}` ended with 0 within {slowest:.1f} s{told}",
        evidence=_evidence(asked, ranks),
    )


def judge(asked: TrainingCheck, answers: Sequence[Mapping[str, Any]], world_size: int) -> list[Finding]:
    """Return what is wrong with the ranks' answers; missing answers are left to `Session.ranks`."""
    # Ranks that were stopped because another one failed are not the cause.
    failed = [entry for entry in answers if entry.get("code") != 0 and not entry.get("stopped")]
    if failed:
        ordered = sorted(failed, key=lambda entry: (bool(entry.get("late")), _rank(entry)))
        return [_failure(asked, entry, world_size) for entry in ordered]
    bound = asked.bound
    if bound is None or len(answers) < world_size:
        return []
    found = metrics(answers)
    if bound.name not in found:
        printed = ", ".join(found) or "none"
        return [
            Finding(
                node="",
                message=f"no rank printed the metric `{bound.name}`",
                remedy=f"print it on a line of its own, `{METRIC_LINE}{bound.name}=0.95`; "
                f"metrics that were printed: {printed}",
            )
        ]
    if not bound.holds(found[bound.name]):
        return [
            Finding(
                node="",
                message=f"{bound.name} is {found[bound.name]:g}, and the recipe asks for {asked.metric}",
                remedy="the report has the end of the output; the limit is `metric:` under `checks.training`",
            )
        ]
    return []


def metrics(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of a job: each as the lowest rank printed it last."""
    found: dict[str, float] = {}
    for entry in sorted(answers, key=_rank, reverse=True):
        given = entry.get("metrics")
        # An image may answer anything.
        found |= {
            str(name): float(value)
            for name, value in (given.items() if isinstance(given, dict) else ())
            if isinstance(value, int | float)
        }
    return found


def _rank(entry: Mapping[str, Any]) -> int:
    rank = entry.get("rank")
    return rank if isinstance(rank, int) else -1


def _failure(asked: TrainingCheck, entry: Mapping[str, Any], world_size: int) -> Finding:
    who = f"rank {entry.get('rank')} of {world_size}"
    last = f": {entry.get('last')}" if entry.get("last") else ", and printed nothing"
    remedy = "the report has the end of its output"
    code = entry.get("code")
    if entry.get("why"):
        message = f"{who} {entry['why']}"
        remedy = "is it in the image? `copy:` and `project:` put files there"
    elif entry.get("late"):
        message = f"{who} did not end within {asked.timeout} s{last}"
        remedy = "it hangs, or needs longer: `timeout:` under `checks.training` sets the limit"
    elif isinstance(code, int) and code < 0:
        message = f"{who} was killed by {_SIGNALS.get(-code, f'signal {-code}')}{last}"
    else:
        message = f"{who} ended with {code}{last}"
    return Finding(node=str(entry.get("host", "")), message=message, remedy=remedy)


def _outcomes(session: Session, asked: TrainingCheck) -> tuple[Outcome, ...]:
    """Run the command with the framework's launcher, or else with mpirun."""
    limit = asked.timeout * session.options.patience
    arguments = ("--command", json.dumps(asked.words), "--seconds", f"{limit:g}")
    timeout = asked.timeout + _MARGIN
    if session.framework(NAME):
        place = f"{session.cluster.host(0)}:{session.cluster.port()}"
        argv = session.agents(NAME, place, *arguments)
        return session.run_everywhere(argv, timeout=timeout, env=session.rank_env)
    if session.target.mpi or session.facts.get("mpirun"):
        return (session.mpi(*session.script("own.py", *arguments), timeout=timeout),)
    raise CheckFailed(
        "nothing in this image starts ranks",
        remedy="pin a framework with a launcher (torch) or an MPI (openmpi, mpich)",
    )


def _evidence(asked: TrainingCheck, answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    kept = ("rank", "host", "code", "seconds", "last", "metrics")
    return {
        "asked": asked.model_dump(),
        "metrics": metrics(answers),
        "ranks": [{key: entry[key] for key in kept if key in entry} for entry in answers],
    }


CHECK = Check(
    name=NAME,
    order=165,
    title="your own command, as every rank of a job on all nodes",
    criterion="every rank ends with 0 within the time limit, and the metric that the recipe asks for is "
    "printed and within its limit",
    run=run,
    skip=lambda session: "" if session.target.training else "the recipe has no `checks: {training: ...}`",
    required=lambda promise: promise.own_training,
)
