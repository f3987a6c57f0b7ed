"""A recipe that the program writes for a person to go on with: its keys, and notes on what they lack."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.core.yamlfile import escaped

_WIDTH = 100
_LIST_WIDTH = 90
_MOST_NOTES = 40
_LONGEST_NOTE = 1_000
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# What YAML 1.1 reads as no text.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A recipe as text in the making.

    Attributes:
        origin: what it was made from, as the end of a sentence.
        fields: the recipe's keys in the order of the file; empty ones are left out.
        notes: what was not carried over, or otherwise than it was, and why; a sentence or two each.

    """

    origin: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Write the file. Notes may quote anybody's names: they stay within their comment."""
        lines = [
            "# yaml-language-server: $schema=recipe.schema.json",
            *_comment("", f"Made from {self.origin}."),
        ]
        for key, value in self.fields.items():
            if value not in ("", (), [], {}, None, False):
                lines += _entry(key, value)
        if self.notes:
            lines += ["", "# Not carried over, or not as it was:"]
            lines += [line for note in self.notes[:_MOST_NOTES] for line in _comment("- ", note)]
        return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{key}:"
        yield from (f"  {_key(name)}: {_scalar(item)}" for name, item in value.items())
    elif isinstance(value, (list, tuple)):
        flat = f"{key}: [{', '.join(map(_scalar, value))}]"
        if len(flat) <= _LIST_WIDTH:
            yield flat
            return
        yield f"{key}:"
        yield from (f"  - {_scalar(item)}" for item in value)
    else:
        yield f"{key}: {_scalar(value)}"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name.lower() not in _WORDS else _scalar(name)


def _scalar(value: object) -> str:
    """Write a number as it is, and a text in quotes: as JSON, which YAML can read for printable text."""
    return json.dumps(value, ensure_ascii=False)


def _comment(bullet: str, text: str) -> list[str]:
    # Line ends of the text are escaped, so that every line of the comment begins as one.
    return textwrap.wrap(
        escaped(text[:_LONGEST_NOTE]),
        _WIDTH,
        initial_indent=f"# {bullet}",
        subsequent_indent="# " + " " * len(bullet),
        break_on_hyphens=False,
    )


def listed(names: Sequence[str], most: int = 12) -> str:
    """Name some things in a sentence, and count the others.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b, c', 'a and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
