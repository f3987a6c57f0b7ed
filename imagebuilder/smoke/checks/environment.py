"""The environment: a rank gets the same variables and tools however it is started."""

from __future__ import annotations

from collections.abc import Mapping

from imagebuilder.smoke.checks import login_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30
# Compared even if the image does not set them, because they decide which libraries are loaded.
_ALSO = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
# Set by shells and sessions themselves.
_OWN = frozenset({"HOME", "HOSTNAME", "PWD", "TERM", "SHLVL"})
# mpirun's own settings, which it hides from the ranks. Seen with Open MPI 5.0.7: set on the node, but not in
# the rank.
_LAUNCHERS_OWN = ("env PRTE_", "env PMIX_")
_REMEDY = (
    "the shell there reads other settings than the container's: set variables under `env:` in the recipe, "
    "not in ~/.bashrc or ~/.profile"
)


def run(session: Session) -> Passed:
    names = sorted({*session.environment, *_ALSO} - _OWN)
    last = session.nnodes - 1
    target = session.cluster.host(last)
    probe = ("sh", f"{session.cluster.folder}/environ.sh", session.nonce, *names)
    direct = session.run(last, probe, timeout=_SECONDS)
    session.require_ok([direct])
    wanted = parse(direct.stdout, session.nonce)
    ways = {
        "a login shell": (last, ("sh", "-lc", '"$@"', "sh", *probe)),
        "ssh": (0, session.ssh(target, *probe)),
    }
    if session.facts.get("mpirun") or session.target.mpi:
        ways["mpirun"] = (0, session.mpirun([target], *probe))
    findings: list[Finding] = []
    for way, (index, argv) in ways.items():
        outcome = session.run(index, argv, timeout=_SECONDS)
        got = parse(outcome.stdout, session.nonce)
        if not outcome.ok or not got:
            why = "no answer in time" if outcome.timed_out else outcome.first_words
            findings.append(_finding(session, f"through {way}: {why}", "see the checks `ssh` and `mpirun`"))
            continue
        # mpirun hides its own settings from the ranks.
        ignored = _LAUNCHERS_OWN if way == "mpirun" else ()
        problems = differences(wanted, got, ignored)
        if problems:
            text = f"through {way} {_counted(problems)}: {'; '.join(problems)}"
            findings.append(_finding(session, text, _REMEDY))
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


def differences(
    wanted: Mapping[str, str], got: Mapping[str, str], ignored: tuple[str, ...] = ()
) -> list[str]:
    """Return the variables and tools in which an environment differs; PATH first, as it explains most."""
    found = []
    for key in sorted({*wanted, *got}, key=lambda key: (key != "env PATH", key)):
        kind, _, name = key.partition(" ")
        here, there = wanted.get(key), got.get(key)
        if here == there or key.startswith(ignored):
            continue
        if kind == "tool":
            found.append(f"`{name}` is {there or 'not found'}, not {here or 'absent'}")
        else:
            found.append(f"{name} is {_value(there)}, not {_value(here)}")
    return found


def _finding(session: Session, message: str, remedy: str) -> Finding:
    return Finding(node=session.nodes[-1].name, message=message, remedy=remedy)


def _counted(problems: list[str]) -> str:
    return "one thing differs" if len(problems) == 1 else f"{len(problems)} things differ"


def _value(value: str | None) -> str:
    return "not set" if value is None else f"`{value}`"


CHECK = Check(
    name="environment",
    order=100,
    title="variables and tools on the last node: in exec, a login shell, ssh and mpirun",
    criterion="every variable of the image's config, and what `PATH` finds, is the same in all of them",
    run=run,
    skip=login_reason,
    required=lambda promise: promise.logins,
)
