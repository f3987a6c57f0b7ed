"""Write YAML that every parser reads alike: what one may take for a number or a truth value is quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

# Nothing else is written without quotes: `1e3`, `0o17` and `y` are numbers and truth values for some parsers.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*(?: [A-Za-z][A-Za-z0-9_./-]*)*")
_WORDS = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|nan|inf")


class _Dumper(yaml.SafeDumper):
    # The same object twice would be written as an anchor and an alias.
    def ignore_aliases(self, _data: object) -> bool:
        return True

    # Lists are indented below their keys, as people write them.
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text):
        style = None
    else:
        style = "|" if "\n" in text.strip("\n") and text.isascii() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(str, _text)
_Dumper.add_multi_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))


def dump(documents: Iterable[Mapping[str, Any]]) -> str:
    """Write documents as one YAML text."""
    parts = [yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000) for document in documents]
    return "---\n".join(parts)
