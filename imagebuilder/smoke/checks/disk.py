"""Space for temporary files: without it, compilers, torch and data loaders fail with odd errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30
_MIB = 1 << 20
_FREE = 256 * _MIB
_INODES = 1000
_REMEDY = (
    "free space where the engine keeps its data; in Kubernetes raise the limit of `ephemeral-storage`, "
    "or mount an `emptyDir` there; or set TMPDIR to a larger place"
)


def run(session: Session) -> Passed:
    outcomes = session.run_everywhere(lambda _: session.script("disk.py"), timeout=_SECONDS)
    session.require_ok(outcomes)
    said = {outcome.node: session.said(outcome)[-1] for outcome in outcomes}
    findings = [finding for node, found in said.items() for finding in judge(node, found)]
    if findings:
        raise CheckFailed.because(*findings)
    least = min(found["free"] for found in said.values())
    folder = next(iter(said.values()))["folder"]
    return Passed(
        summary=f"at least {least // _MIB} MiB free in {folder}, which is writable",
        evidence={
            node: {key: found[key] for key in ("folder", "free", "inodes")} for node, found in said.items()
        },
    )


def judge(node: str, said: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with a node's folder for temporary files; -1 inodes means no limit."""
    folder = said["folder"]
    if said["wrote"]:
        message = f"{folder} cannot be written to: {said['wrote']} ({said['free'] // _MIB} MiB free)"
        return [Finding(node=node, message=message, remedy=_REMEDY)]
    if said["free"] < _FREE:
        message = f"{folder} has only {said['free'] // _MIB} MiB free, and {_FREE // _MIB} are needed"
        return [Finding(node=node, message=message, remedy=_REMEDY)]
    if 0 <= said["inodes"] < _INODES:
        message = f"{folder} has room for only {said['inodes']} more files, and {_INODES} are needed"
        return [Finding(node=node, message=message, remedy="remove files there, or use a larger file system")]
    return []


CHECK = Check(
    name="disk",
    order=20,
    title="space for temporary files on each node",
    criterion=f"1 MiB can be written and synced to $TMPDIR or /tmp; {_FREE // _MIB} MiB and {_INODES} files "
    "are free there",
    run=run,
)
