"""The pins: every node loads the versions that the lock names, and the same ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from imagebuilder import catalog
from imagebuilder.catalog import Probe
from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
_OWN = "imagebuilder-probe"


def run(session: Session) -> Passed:
    findings: list[Finding] = []
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    probes, unasked = _probes(session)
    answers = _ask_all(session, {name: probe.command for name, probe in probes.items()})
    for name, probe in probes.items():
        pin, outcomes = session.target.pin(name), answers[name]
        versions = {
            node.name: _answer(outcome) for node, outcome in zip(session.nodes, outcomes, strict=True)
        }
        if not pin and not any(versions.values()) and not _is_doubled(outcomes[0]):
            absent[name] = outcomes[0].last_words
            continue
        found[name] = {"pin": pin, "found": versions[session.nodes[0].name], "nodes": versions}
        for (node, version), outcome in zip(versions.items(), outcomes, strict=True):
            if not version:
                findings.append(_unknown(node, name, pin, outcome))
            elif pin and not agrees(pin, version, probe.compare):
                findings.append(_another(session, node, name, version))
    evidence = {**found, "not asked": unasked, **({"not found": absent} if absent else {})}
    if findings:
        raise CheckFailed.because(*findings, evidence=evidence)
    if not found:
        raise CheckFailed(
            "no pin could be checked",
            remedy="test an image that imagebuilder built: its labels name the pins",
        )
    loaded = ", ".join(f"{name} {entry['found']}" for name, entry in found.items())
    unpinned = "" if session.target.pins else "; --expect makes them pins"
    return Passed(summary=f"loaded: {loaded}{unpinned}", evidence=evidence)


def _probes(session: Session) -> tuple[dict[str, Probe], list[str]]:
    """Return the probes of the pins; of a foreign image, which promises nothing, those of all components."""
    components, own = catalog.load(), dict(session.target.probes)
    probes, unasked = {}, []
    for name in components if session.target.origin == "foreign" else dict(session.target.pins):
        probe = components[name].probe if name in components else own.get(name)
        if probe is None:
            unasked.append(f"{name}: the catalog has no probe for it")
        elif probe.gpu and session.mode == "cpu":
            unasked.append(f"{name}: needs a GPU")
        else:
            probes[name] = probe
    return probes, unasked


def agrees(pin: str, version: str, parts: int) -> bool:
    """Compare the leading numbers of a pin and of a library's own version, without Debian's revision.

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


def _ask_all(session: Session, commands: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[Outcome, ...]]:
    """Ask every node for all components; our probe answers for all at once, because torch imports slowly."""
    own = {name: words[1] for name, words in commands.items() if words[0] == _OWN and len(words) == 2}
    answers = {name: _ask(session, command) for name, command in commands.items() if name not in own}
    if own:
        outcomes = _ask(session, (_OWN, "--all", *own.values()))
        for name, word in own.items():
            answers[name] = tuple(one_answer(outcome, word) for outcome in outcomes)
    return answers


def one_answer(outcome: Outcome, word: str) -> Outcome:
    """Return one component's part of the answer, as if it had been asked for alone."""
    for line in outcome.stdout.splitlines():
        if line.startswith(f"{word}="):
            return dataclasses.replace(outcome, code=0, stdout=line.partition("=")[2], timed_out=False)
        if line.startswith(f"{word}!"):
            return dataclasses.replace(outcome, code=1, stdout="", stderr=line.partition("!")[2])
    # The command ended earlier: its own exit code and output give the reason.
    return dataclasses.replace(outcome, code=outcome.code or 1, stdout="")


def _ask(session: Session, command: tuple[str, ...]) -> tuple[Outcome, ...]:
    path = session.environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    # In a foreign image Python may be elsewhere than on PATH.
    if command[0] == _OWN:
        command = (*session.cluster.python, f"{session.cluster.folder}/bin/{_OWN}", *command[1:])
    elif command[0] == "python":
        command = (*session.cluster.python, *command[1:])
    env = {"PATH": f"{session.cluster.folder}/bin:{path}", "OMP_NUM_THREADS": "1"}
    return session.run_everywhere(lambda _: command, timeout=_SECONDS, env=lambda _: env)


def _answer(outcome: Outcome) -> str:
    return outcome.stdout.strip().splitlines()[-1].strip() if outcome.ok and outcome.stdout.strip() else ""


def _is_doubled(outcome: Outcome) -> bool:
    """Return True if several copies of a library are mixed, which is wrong whatever the pin is."""
    return "copies of" in outcome.last_words or "come from several places" in outcome.last_words


def _unknown(node: str, name: str, pin: str, outcome: Outcome) -> Finding:
    pinned = f"{name} is pinned to {pin}, but the" if pin else f"{name}: the"
    return Finding(
        node=node,
        message=f"{pinned} loaded version is unknown: {outcome.last_words}",
        remedy=f"{name} does not load there, or several copies load; the probe's command is in the report",
    )


def _another(session: Session, node: str, name: str, version: str) -> Finding:
    if session.target.origin == "foreign":
        message = f"{name} {session.target.pin(name)} is expected, but {version} is loaded"
        remedy = f"the image has another {name} than `--expect` says, or another copy of it comes first"
    else:
        message = f"{name} is pinned to {session.target.pin(name)}, but {version} is loaded"
        remedy = (
            f"another copy of {name} comes first (through pip on top of the image, LD_LIBRARY_PATH or "
            "apt), or the image was not built from this lock: build it again"
        )
    return Finding(node=node, message=message, remedy=remedy)


CHECK = Check(
    name="pins",
    order=30,
    title="the version of each pin, as the loaded library reports it on each node",
    criterion="on every node each component reports the pinned version, and one copy of it is loaded",
    run=run,
)
