"""The page of a run: every figure beside that of a plain Dockerfile, in the same run."""

from __future__ import annotations

from collections.abc import Mapping

from bench.pull.reads import Reads

_SHOWN = 25

Figures = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By recipe, by what was measured, by side: the median."""


def page(figures: Figures, reads: Mapping[str, Reads], command: str, machine: Mapping[str, str]) -> str:
    """Return the page: a table for each recipe, and what the first step reads."""
    lines = ["# What a node waits for", "", f"`{command}`", ""]
    lines += [
        "Medians; in brackets the part of plain's. `bench/pull/__main__.py` says what each side does.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    for recipe, rows in figures.items():
        sides = tuple(dict.fromkeys(side for row in rows.values() for side in row))
        lines += ["", f"## {recipe}", "", f"| | {' | '.join(sides)} |", f"|---|{'--:|' * len(sides)}"]
        for what, row in rows.items():
            lines.append(f"| {what} | {' | '.join(_cell(row, side) for side in sides)} |")
        if recipe in reads:
            lines += ["", *_read(reads[recipe])]
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, float], side: str) -> str:
    if side not in row:
        return "-"
    text = f"{row[side]:,.1f}"
    if side != "plain" and row.get("plain"):
        text += f" ({row[side] / row['plain']:.3f})"
    return text


def _read(found: Reads) -> list[str]:
    part = sum(row[1] for row in found.read)
    share = part / found.size if found.size else 0.0
    text = f"Of {found.files:,} files with {found.size / 1e6:,.0f} MB, the first step reads something of "
    text += f"{len(found.read):,}: {part / 1e6:,.0f} MB, {share:.1%}. These pages are in the cache after it, "
    text += "with what the kernel reads ahead."
    rows = [f"{path} | {read / 1e6:.1f} MB | {size / 1e6:.1f} MB" for path, read, size in found.read[:_SHOWN]]
    return [text, "", "| file | read | of |", "|---|--:|--:|", *(f"| {row} |" for row in rows)]
