"""A comparison of checkpoints as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from imagebuilder.checkpoints.compare import KINDS, Comparison, Difference, Kind

_PLURAL: dict[Kind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "value": "other values",
}


def lines(comparison: Comparison, most: int) -> tuple[str, ...]:
    """Lay a comparison out as text: counts by kind, then at most so many differences of each kind."""
    verdict = "DIFFER" if comparison.differences else "equal"
    rows = [f"{comparison.first} and {comparison.other}: {verdict}"]
    kinds = [kind for kind in KINDS if comparison.equal[kind] or comparison.differing(kind)]
    for kind in kinds:
        equal, differing = comparison.equal[kind], comparison.differing(kind)
        rows.append(f"  {_PLURAL[kind]:15}  {equal} equal, {differing} differ")
    for kind in kinds:
        found = [difference for difference in comparison.differences if difference.kind == kind]
        rows += [_line(difference) for difference in found[:most]]
        if len(found) > most:
            rows.append(f"{kind}  ... and {len(found) - most} more, see --most")
    return tuple(rows)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Make of a comparison what `--json` prints."""
    return {
        "first": str(comparison.first),
        "other": str(comparison.other),
        "equal": not comparison.differences,
        "counts": {
            kind: {"equal": comparison.equal[kind], "differ": comparison.differing(kind)} for kind in KINDS
        },
        "differences": [_difference(difference) for difference in comparison.differences],
    }


def _line(difference: Difference) -> str:
    a, b = difference.values
    head = f"{difference.kind:9}  {_safe(difference.name)}"
    found = difference.measure
    if difference.what == "missing":
        return f"{head}  only in the first: {_safe(a)}"
    if difference.what == "extra":
        return f"{head}  not in the first: {_safe(b)}"
    if found is None:
        return f"{head}  {difference.what}: {_safe(a)} against {_safe(b)}"
    words = [f"{found.count} of {found.of} differ"]
    if found.max_abs is not None:
        words.append(f"max abs {found.max_abs:.3g}")
    if found.relative is not None:
        words.append(f"relative {found.relative:.3g}")
    if found.not_finite:
        words.append(f"{found.not_finite} not finite")
    words.append(f"first at {list(found.first)}: {found.first_values[0]} against {found.first_values[1]}")
    return f"{head}  {a}  {', '.join(words)}"


def _difference(difference: Difference) -> dict[str, Any]:
    found = difference.measure
    row: dict[str, Any] = {
        "name": difference.name,
        "kind": difference.kind,
        "what": difference.what,
        "first": difference.values[0] or None,
        "other": difference.values[1] or None,
    }
    if found is not None:
        row |= {
            "count": found.count,
            "of": found.of,
            "max_abs": _finite(found.max_abs),
            "relative": _finite(found.relative),
            "not_finite": found.not_finite,
            "index": list(found.first),
            "values": list(found.first_values),
        }
    return row


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _safe(text: str) -> str:
    """Keep what a file is named inside from acting on the terminal."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
