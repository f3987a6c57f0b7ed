"""The compilers: the programs that they make run and give the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
_COMPILATION_SECONDS = 100

# Messages of compilers and linkers and what they mean here; the first match counts.
_REMEDIES = {
    "unsupported GNU version": "this nvcc takes no gcc as new as this: pin an older `gcc`, or a newer `cuda`",
    "GLIBCXX_": "an older libstdc++ is found first: look at LD_LIBRARY_PATH and at copies in the venv",
    "stdio.h": "the C library's headers are missing: libc6-dev",
    "crt1.o": "the C library's start files are missing: libc6-dev",
    "No space left": "see the check `disk`",
    "Permission denied": "files in $TMPDIR cannot be executed there: it is mounted with `noexec`",
}


def run(session: Session) -> Passed:
    # All nodes run one image, so one node is enough; other checks look at limits, which may differ.
    script = session.script("toolchain.py", "--device", session.device, "--seconds", _COMPILATION_SECONDS)
    outcome = session.run(0, script, timeout=_SECONDS, env=session.rank_env(0))
    session.require_ok([outcome])
    said = session.said(outcome)
    if not said:
        raise CheckFailed("the script that tries the compilers gave no answer", node=outcome.node)
    findings = judge(outcome.node, said[-1])
    if findings:
        raise CheckFailed.because(*findings)
    results = dict(said[-1]["results"])
    if not said[-1]["tools"]["nvcc"]:
        results |= dict.fromkeys(("CUDA", "torch extension"), "not tried: no nvcc in this image")
    worked = [language for language, result in results.items() if result.startswith("ok")]
    return Passed(
        summary=f"{', '.join(worked)} compile with {said[-1]['versions'].get('gcc', 'gcc')}, and "
        "the programs give the right results",
        evidence={"tools": said[-1]["tools"], "versions": said[-1]["versions"], "results": results},
    )


def judge(node: str, said: Mapping[str, Any]) -> list[Finding]:
    """Return the compilers that are missing or make programs that do not work."""
    findings = [
        Finding(
            node=node,
            message=f"`{tool}` is not on PATH",
            remedy="pin `gcc` in the recipe, or find out what changed PATH",
        )
        for tool in ("gcc", "g++")
        if not said["tools"][tool]
    ]
    missing = {"C": "gcc", "C++": "g++"}
    for language, result in said["results"].items():
        if result.startswith("ok") or (language in missing and not said["tools"][missing[language]]):
            continue
        # An extension needs Python's headers, which not every image promises.
        if result.startswith("no "):
            continue
        remedy = next((text for sign, text in _REMEDIES.items() if sign in result), "")
        findings.append(
            Finding(
                node=node,
                message=f"a program in {language} {result}"
                if language != "torch extension"
                else f"an extension of torch {result}",
                remedy=remedy or "the report has the compilers' versions and paths",
            )
        )
    return findings


def _skip(session: Session) -> str:
    return "" if session.target.pin("gcc") or session.facts.get("gcc") else "no compiler in this image"


CHECK = Check(
    name="toolchain",
    order=50,
    title="programs in C and C++ (with nvcc also in CUDA and for torch), compiled and run",
    criterion="each compiles without errors, runs, and prints the right number; CUDA programs run only if "
    "there is a GPU",
    run=run,
    skip=_skip,
    required=lambda promise: "gcc" in promise.pins,
)
