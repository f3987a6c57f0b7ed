"""A recipe that the program writes as a starting point: its keys, and notes on what is missing."""

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
# Words that YAML 1.1 does not read as text.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A recipe that is about to be written as text.

    Attributes:
        origin: ends the sentence `Made from ...`.
        fields: the recipe's keys in the order of the file; empty ones are left out.
        notes: what was left out or changed, and why; a sentence or two each.

    """

    origin: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Return the file's text. Notes may quote untrusted names, so they are escaped to stay comments."""
        lines = [
            "# yaml-language-server: $schema=recipe.schema.json",
            *_comment("", f"Made from {self.origin}."),
        ]
        for key, value in self.fields.items():
            if value not in ("", (), [], {}, None, False):
                lines += _entry(key, value)
        if self.notes:
            lines += ["", "# Left out or changed:"]
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
    """Write a value as JSON, which is also valid YAML if the text is printable."""
    return json.dumps(value, ensure_ascii=False)


def _comment(bullet: str, text: str) -> list[str]:
    # Line ends are escaped, so that every line of the comment begins with `#`.
    return textwrap.wrap(
        escaped(text[:_LONGEST_NOTE]),
        _WIDTH,
        initial_indent=f"# {bullet}",
        subsequent_indent="# " + " " * len(bullet),
        break_on_hyphens=False,
    )


def listed(names: Sequence[str], most: int = 12) -> str:
    """List names for a sentence; those beyond `most` are only counted.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b, c', 'a and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
