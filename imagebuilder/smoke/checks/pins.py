"""The pins: every node loads the versions that the lock names, and the same ones."""

from __future__ import annotations

import re
from typing import Any

from imagebuilder import catalog
from imagebuilder.smoke.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120


def run(session: Session) -> Passed:
    components = catalog.load()
    findings: list[Finding] = []
    found: dict[str, Any] = {}
    unasked = []
    for name, pin in session.target.pins:
        component = components.get(name)
        if component is None or component.probe is None:
            unasked.append(f"{name}: the catalog has no probe for it")
            continue
        if component.probe.gpu and session.mode == "cpu":
            unasked.append(f"{name}: needs a GPU")
            continue
        outcomes = _ask(session, component.probe.command)
        versions = {
            node.name: _answer(outcome) for node, outcome in zip(session.nodes, outcomes, strict=True)
        }
        found[name] = {"pin": pin, "found": versions[session.nodes[0].name], "nodes": versions}
        for (node, version), outcome in zip(versions.items(), outcomes, strict=True):
            if not version:
                findings.append(_unknown(node, name, pin, outcome))
            elif not agrees(pin, version, component.probe.compare):
                findings.append(_another(node, name, pin, version))
    evidence = {**found, "not asked": unasked}
    if findings:
        raise CheckFailed.because(*findings, evidence=evidence)
    if not found:
        raise CheckFailed(
            "no pin could be looked at", remedy="an image of imagebuilder is labelled with its pins"
        )
    loaded = ", ".join(f"{name} {entry['found']}" for name, entry in found.items())
    return Passed(summary=f"as loaded: {loaded}", evidence=evidence)


def agrees(pin: str, version: str, parts: int) -> bool:
    """Compare the leading numbers of a pin and of what a library reports; Debian's revision does not count.

    >>> agrees("2.10.0", "2.10.0+cu128", 3), agrees("1:10.0p1-7", "10.0p2", 2), agrees("2.27.5", "2.27.3", 3)
    (True, True, False)
    """
    wanted, got = numbers(pin), numbers(version)
    count = min(parts, len(wanted))
    return bool(wanted) and wanted[:count] == got[:count]


def numbers(version: str) -> tuple[int, ...]:
    """Read the leading numbers of a version, without Debian's epoch."""
    found = re.match(r"(?:\d+:)?v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _ask(session: Session, command: tuple[str, ...]) -> tuple[Outcome, ...]:
    path = session.environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    env = {"PATH": f"{session.cluster.folder}/bin:{path}", "OMP_NUM_THREADS": "1"}
    return session.run_everywhere(lambda _: command, timeout=_SECONDS, env=lambda _: env)


def _answer(outcome: Outcome) -> str:
    return outcome.stdout.strip().splitlines()[-1].strip() if outcome.ok and outcome.stdout.strip() else ""


def _unknown(node: str, name: str, pin: str, outcome: Outcome) -> Finding:
    return Finding(
        node=node,
        message=f"{name} is pinned to {pin}, and what loads cannot be told: {outcome.last_words}",
        remedy=f"{name} does not load there, or more than once; the probe's command is in the report",
    )


def _another(node: str, name: str, pin: str, version: str) -> Finding:
    return Finding(
        node=node,
        message=f"{name} is pinned to {pin}, but what loads is {version}",
        remedy=f"another copy of {name} comes first (through pip on top of the image, LD_LIBRARY_PATH or "
        "apt), or the image was not built from this lock: build it again",
    )


CHECK = Check(
    name="pins",
    title="each pin's version, asked of the library that is really loaded, on each node",
    criterion="on every node each component reports the pinned version, and one copy of it is loaded",
    run=run,
)
