"""Reports to show: those of tests/cases/reports, and one in which everything is hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imagebuilder.smoke.report import CheckResult, Finding, Host, Report, Step, verdict

CASES = Path(__file__).resolve().parents[1] / "cases" / "reports"
FILES = tuple(sorted(CASES.glob("*.json")))

# What would act, break a format or be misread, if it got through: markup, a style sheet's and a script's end,
# CDATA's end, terminal colours, all control characters, reversed text, half a surrogate pair, no characters.
HOSTILE = (
    "</script></style></title><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">"
    "]]>&amp;{{ 7 * 7 }}{% raw %}'\"\x1b[31mred\x1b[0m\x1b]0;title\x07"
    + "".join(map(chr, range(32)))
    + "\x7f\x85\x9b\u202eesrever\u2066\ud800\ufffe\uffff\U0001f600"
)


def check(name: str = "names", status: str = "passed", **changes: Any) -> CheckResult:
    fields: dict[str, Any] = {
        "name": name,
        "title": f"the {name}",
        "criterion": "they hold",
        "required": True,
        "exchanges": True,
        "status": status,
        "summary": "all is well" if status == "passed" else "",
        "reason": "not here" if status == "skipped" else "",
        "findings": (Finding(node="node0", message="it broke", remedy="mend it"),)
        if status == "failed"
        else (),
        "seconds": 1.5,
    }
    return CheckResult(**{**fields, **changes})


def report(*checks: CheckResult, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "tool": "imagebuilder 0",
        "recipe": "demo",
        "lock": "a" * 64,
        "digest": "sha256:" + "b" * 64,
        "reference": "demo:1",
        "pins": {"nccl": "2.27.5", "torch": "2.10.0"},
        "runtime": "docker",
        "nodes": 2,
        "mode": "cpu",
        "mode_reason": "no GPU here",
        "caveats": ("NCCL not exercised",),
        "host": Host(cores=2, memory_bytes=1 << 30, gpus=(), engine="docker", engine_version="26.1"),
        "checks": checks,
        "started": "2026-01-02T03:04:05Z",
        "seconds": 3.0,
        "passed": verdict(checks),
    }
    return Report(**{**fields, **changes})


def hostile() -> Report:
    """Give a report in which every text that may come from an image is hostile, and one log is huge."""
    step = Step(
        node=HOSTILE,
        command=HOSTILE,
        exit_code=1,
        timed_out=False,
        seconds=1.0,
        output="x" * 70 + ("y" * 99 + "\n") * 20_000 + HOSTILE,
    )
    finding = Finding(node=HOSTILE, message=HOSTILE, remedy=HOSTILE)
    texts = {"title": HOSTILE, "criterion": HOSTILE, "steps": (step,)}
    sweep = [{"bytes": 4, "dtype": HOSTILE, "seconds": 1.0, "algbw_gbs": 1.0, "busbw_gbs": 1.0}]
    rows = [{"nodes": 2, "processes": 1, "backend": HOSTILE, "reason": HOSTILE}]
    return report(
        check("a", "failed", findings=(finding, finding), **texts),
        check("b", "skipped", reason=HOSTILE, **texts),
        check(
            "pins",
            summary=HOSTILE,
            evidence={"nccl": {"pin": "1", "found": HOSTILE, "nodes": {HOSTILE: HOSTILE}}},
        ),
        check("collectives", evidence={"sweep": sweep}),
        check("scaling", evidence={"rows": rows}),
        **dict.fromkeys(("tool", "recipe", "lock", "digest", "reference", "mode_reason"), HOSTILE),
        caveats=(HOSTILE,),
        pins={HOSTILE: HOSTILE, "nccl": "1"},
    )
