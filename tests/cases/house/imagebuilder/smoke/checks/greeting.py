"""Every rank has a greeting of every other one."""

from __future__ import annotations

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session


def run(session: Session) -> Passed:
    ranks = session.launch(session.payload("greeting"), timeout=30)
    for entry in ranks:
        if len(entry["greetings"]) != session.world_size:
            raise CheckFailed("greetings are missing", node=session.node_of(entry["rank"]))
    return Passed(summary=f"{len(ranks)} ranks have all greetings")


CHECK = Check(
    name="greeting",
    order=135,
    title="greetings of all ranks",
    criterion="every rank has one of each rank",
    run=run,
    skip=lambda session: framework_reason(session, "greeting"),
    required=lambda promise: promise.framework("greeting"),
)
