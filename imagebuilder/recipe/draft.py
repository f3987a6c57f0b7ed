"""A recipe that the program writes for a person to go on with: its keys, and notes on what they lack."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.core.yamlfile import printable

_WIDTH = 100
_LIST_WIDTH = 90


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A recipe as text in the making.

    Attributes:
        origin: what it was made from, as the end of a sentence.
        fields: the recipe's keys, as the model has them and in the order of the file; empty ones are left out.
        notes: what was not carried over, or otherwise than it was, and why; a sentence or two each.

    """

    origin: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Write the file. Notes may quote anybody's names: they stay within their comment."""
        lines = ["# yaml-language-server: $schema=recipe.schema.json", *_comment("", f"Made from {self.origin}.")]
        for key, value in self.fields.items():
            if value not in ("", (), [], {}, None, False):
                lines += _entry(key, value)
        if self.notes:
            lines += ["", "# Not carried over, or not as it was:"]
            lines += [line for note in self.notes for line in _comment("- ", note)]
        return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        flat = f"{key}: {{{', '.join(f'{name}: {_scalar(item)}' for name, item in value.items())}}}"
        if key == "ssh" and len(flat) <= _WIDTH:
            yield flat
            return
        yield f"{key}:"
        yield from (f"  {name}: {_scalar(item)}" for name, item in value.items())
    elif isinstance(value, (list, tuple)):
        flat = f"{key}: [{', '.join(map(_scalar, value))}]"
        if len(flat) <= _LIST_WIDTH:
            yield flat
            return
        yield f"{key}:"
        yield from (f"  - {_scalar(item)}" for item in value)
    else:
        yield f"{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    """Write a number as it is, and a text in quotes: as JSON, which YAML can read for printable text."""
    return json.dumps(value, ensure_ascii=False)


def _comment(bullet: str, text: str) -> list[str]:
    # What is not printable is escaped first, line ends among it: `wrap` alone decides where lines end.
    return textwrap.wrap(
        "".join(part for part in _escaped(text)),
        _WIDTH,
        initial_indent=f"# {bullet}",
        subsequent_indent="# " + " " * len(bullet),
        break_on_hyphens=False,
    )


def _escaped(text: str) -> Iterator[str]:
    for start in range(0, len(text), 100):
        yield printable(text[start : start + 100])


def listed(names: Sequence[str], most: int = 12) -> str:
    """Name some things in a sentence, and count the others.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b, c', 'a and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
