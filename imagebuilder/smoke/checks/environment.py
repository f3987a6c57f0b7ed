"""The environment: a rank gets the same variables and tools however it is started."""

from __future__ import annotations

from collections.abc import Mapping

from imagebuilder.smoke.checks import hostname_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30
# Looked at though no image has to set them: they decide what is loaded.
_ALSO = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
# A shell's or a session's own business.
_OWN = frozenset({"HOME", "HOSTNAME", "PWD", "TERM", "SHLVL"})
# mpirun's settings for itself, which it keeps from the ranks. Seen with Open MPI 5.0.7: they are there on the
# node, and gone in the rank.
_LAUNCHERS_OWN = ("env PRTE_", "env PMIX_")


def run(session: Session) -> Passed:
    names = sorted({*session.environment, *_ALSO} - _OWN)
    last = session.size - 1
    target = session.cluster.host(last)
    probe = ("sh", f"{session.cluster.folder}/environ.sh", session.nonce, *names)
    direct = session.run(last, probe, timeout=_SECONDS)
    session.require_ok([direct])
    wanted = parse(direct.stdout, session.nonce)
    ways = {
        "a login shell": (last, ("sh", "-lc", '"$@"', "sh", *probe)),
        "ssh": (0, session.ssh(target, *probe)),
    }
    if session.facts.get("mpirun") or session.target.pin("openmpi"):
        ways["mpirun"] = (0, session.mpirun([target], *probe))
    findings: list[Finding] = []
    for way, (index, argv) in ways.items():
        outcome = session.run(index, argv, timeout=_SECONDS)
        got = parse(outcome.stdout, session.nonce)
        if way == "mpirun":
            problems = differences(_without_launcher(wanted), _without_launcher(got))
        else:
            problems = differences(wanted, got)
        remedy = "the shell there reads other settings than the container's; see docs/explanation/ssh.md"
        if not outcome.ok or not got:
            problems = [": no answer in time" if outcome.timed_out else f": {outcome.last_words}"]
            remedy = "see the checks `ssh` and `mpirun`"
        node = session.nodes[last].name
        findings += [
            Finding(node=node, message=f"through {way}{problem}", remedy=remedy) for problem in problems
        ]
    if findings:
        raise CheckFailed.because(*findings)
    tools = {key.removeprefix("tool "): path for key, path in wanted.items() if key.startswith("tool ")}
    return Passed(
        summary=f"{len(names)} variables and {len(tools)} tools are the same in exec, {', '.join(ways)}",
        evidence={"variables": names, "tools": tools},
    )


def parse(text: str, nonce: str) -> dict[str, str]:
    """Read what environ.sh printed: `tool python`, `env PATH` and so on; empty without the nonce."""
    found: dict[str, str] = {}
    answered = False
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if line == f"@nonce {nonce}":
            answered = True
        elif kind in ("@tool", "@env"):
            found[f"{kind[1:]} {name}"] = value
    return found if answered else {}


def differences(wanted: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """Say in which variables and tools another environment differs."""
    found = []
    for key in sorted({*wanted, *got}):
        kind, _, name = key.partition(" ")
        here, there = wanted.get(key), got.get(key)
        if here == there:
            continue
        if kind == "tool":
            found.append(f" `{name}` is {there or 'not found'}, not {here or 'absent'}")
        else:
            found.append(f" {name} is {_value(there)}, not {_value(here)}")
    return found


def _without_launcher(found: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in found.items() if not key.startswith(_LAUNCHERS_OWN)}


def _value(value: str | None) -> str:
    return "not set" if value is None else f"`{value}`"


CHECK = Check(
    name="environment",
    title="variables and tools on the last node: in exec, a login shell, ssh and mpirun",
    criterion="every variable of the image's config, and what `PATH` finds, is the same in all of them",
    run=run,
    skip=hostname_reason,
    required=lambda session: session.cluster.kind != "process",
)
