"""The control: ranks that train alone must differ. Otherwise equal replicas in `training` prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuilder.smoke.checks import framework_reason
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 180


def run(session: Session) -> Passed:
    ranks = session.launch(
        session.payload("control"), "--role", "control", "--data", session.put_digits(), timeout=_SECONDS
    )
    message = judge(ranks)
    if message:
        raise CheckFailed(
            message,
            remedy="the same data went to all ranks, or something in the image synchronises them behind the "
            "program's back; until that is found, a pass of `training` means nothing",
        )
    return Passed(
        summary=f"{len(ranks)} ranks that trained alone started with equal weights and ended with others",
        evidence={
            "ranks": [{key: value for key, value in entry.items() if key != "losses"} for entry in ranks]
        },
    )


def judge(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return why the ranks' answers are not a valid control; empty if they are."""
    if len({entry["start"] for entry in ranks}) != 1:
        return "the ranks did not start with equal weights, so different weights at the end say nothing"
    if len({entry["end"] for entry in ranks}) != len(ranks):
        return "ranks that trained alone stayed equal: the test cannot tell them from synchronised ones"
    return ""


CHECK = Check(
    name="control",
    order=180,
    title="the same training, each rank alone (torch: without DistributedDataParallel)",
    criterion="from equal weights, every rank ends with different ones",
    run=run,
    skip=lambda session: framework_reason(session, "control"),
    required=lambda promise: promise.asked and promise.framework("control"),
    digits=lambda _options: "few",
    reusable=True,
)
