"""The compilers: the programs that they make run and give the right answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebuilder.catalog import numbers
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 240
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


_CALLED = {"torch extension": "an extension of torch", "torch.compile": "a function for torch.compile"}


def run(session: Session) -> Passed:
    # All nodes run one image, so one node is enough; other checks look at limits, which may differ.
    script = session.script("toolchain.py", "--device", session.device, "--seconds", _COMPILATION_SECONDS)
    outcome = session.run(0, script, timeout=_SECONDS, env=session.rank_env(0))
    session.require_ok([outcome])
    said = session.said(outcome)
    if not said:
        raise CheckFailed("the script that tries the compilers gave no answer", node=outcome.node)
    wanted = session.target.gpus
    findings = [*judge(outcome.node, said[-1]), *unknown_gpus(outcome.node, said[-1]["ptxas"], wanted)]
    if findings:
        raise CheckFailed.because(*findings)
    results = dict(said[-1]["results"])
    if not said[-1]["tools"]["nvcc"]:
        results |= dict.fromkeys(("CUDA", "torch extension"), "not tried: no nvcc in this image")
    worked = [language for language, result in results.items() if result.startswith("ok")]
    return Passed(
        summary=f"{', '.join(worked)} compile with {said[-1]['versions'].get('gcc', 'gcc')}, and "
        "the programs give the right results" + left_out(results) + assembled(said[-1]["ptxas"], wanted),
        evidence={**{key: said[-1][key] for key in ("tools", "versions", "ptxas")}, "results": results},
    )


def left_out(results: Mapping[str, str]) -> str:
    """Say why torch.compile was not tried, if it was not.

    >>> left_out({"torch.compile": "no Python.h in this image"})
    '; torch.compile not tried: no Python.h in this image'
    """
    result = results.get("torch.compile", "ok")
    return f"; torch.compile not tried: {result}" if result.startswith("no ") else ""


def assembled(ptxas: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> str:
    """Say which of the recipe's GPUs Triton can write code for."""
    return f"; Triton's ptxas knows {', '.join(wanted)}" if ptxas and wanted else ""


def unknown_gpus(node: str, ptxas: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> Iterator[Finding]:
    """Yield the recipe's GPUs that the assembler which Triton would use for them does not know."""
    for gpu in wanted:
        # Triton 3.5 and later have one of their own for GPUs from 10.0 on.
        newer = numbers(gpu) >= (10, 0) and "ptxas-blackwell" in ptxas
        program = "ptxas-blackwell" if newer else "ptxas"
        if program in ptxas and gpu not in ptxas[program]:
            yield Finding(
                node=node,
                message=f"hosts.gpus has {gpu}, and Triton's {program} knows {', '.join(ptxas[program])}",
                remedy="torch.compile would fail there: pin a newer torch, or set TRITON_PTXAS_PATH to the "
                "ptxas of a newer CUDA",
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
                message=f"{_CALLED.get(language, f'a program in {language}')} {result}",
                remedy=remedy or "the report has the compilers' versions and paths",
            )
        )
    return findings


def _skip(session: Session) -> str:
    return "" if session.target.pin("gcc") or session.facts.get("gcc") else "no compiler in this image"


CHECK = Check(
    name="toolchain",
    order=50,
    title="programs in C and C++ and a function for torch.compile (with nvcc also in CUDA and for torch), "
    "compiled and run",
    criterion="each compiles without errors, runs, and prints the right number; CUDA programs run only if "
    "there is a GPU, and torch.compile if the image has Python's headers; Triton's ptxas knows the GPUs "
    "of the recipe's `hosts.gpus`",
    run=run,
    skip=_skip,
    required=lambda promise: "gcc" in promise.pins,
)
