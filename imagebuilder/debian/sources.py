"""Read apt's sources, in both formats of sources.list(5), and files of paragraphs (deb822(5))."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_FIELDS = frozenset({"types", "uris", "suites", "components", "enabled", "signed-by", "trusted"})
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)")


@dataclass(frozen=True, kw_only=True)
class AptSource:
    """One archive of binary packages.

    Attributes:
        uri: its URL, without a slash at the end.
        suites, components: as in the file; a suite that ends in a slash has no components.
        signed_by: a file with keys, or the keys themselves; "" if the source names neither.
        trusted: true if apt ignores its signature.

    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    trusted: bool


def of_file(name: str, text: str) -> Iterator[AptSource]:
    """Read a file of apt's sources. Its ending says which format it has; apt ignores other endings."""
    if name.endswith(".sources"):
        yield from deb822(text)
    elif name.endswith(".list"):
        yield from one_line(text)


def one_line(text: str) -> Iterator[AptSource]:
    """Read the lines `deb [signed-by=FILE] URI SUITE COMPONENTS`, and ignore other lines."""
    for line in io.StringIO(text):
        if match := _ONE_LINE.fullmatch(line.partition("#")[0].strip()):
            options = dict(word.partition("=")[::2] for word in (match["options"] or "").split())
            yield _source(match["uri"], (match["suite"],), match["rest"], options)


def deb822(text: str) -> Iterator[AptSource]:
    """Read paragraphs with the fields `Types`, `URIs`, `Suites`, and ignore disabled ones."""
    for fields in paragraphs(text, _FIELDS):
        disabled = fields.get("enabled", "").lower() in {"no", "false"}
        if disabled or "deb" not in fields.get("types", "").split():
            continue
        suites = tuple(fields.get("suites", "").split())
        for uri in fields.get("uris", "").split():
            yield _source(uri, suites, fields.get("components", ""), fields)


def _source(uri: str, suites: tuple[str, ...], components: str, options: dict[str, str]) -> AptSource:
    return AptSource(
        uri=uri.rstrip("/"),
        suites=suites,
        components=tuple(components.split()),
        signed_by=options.get("signed-by", "").strip(),
        trusted=options.get("trusted", "").lower() == "yes",
    )


def paragraphs(text: str, wanted: Collection[str]) -> Iterator[dict[str, str]]:
    """Read paragraphs of `Field: value`. Continuation lines are joined; a lone dot is an empty line.

    Args:
        text: the paragraphs, with empty lines between them.
        wanted: names of the fields to return, in lower case: field names are not case-sensitive.

    """
    block: dict[str, io.StringIO] = {}
    last = ""
    for line in itertools.chain(io.StringIO(text), [""]):
        if not line.strip():
            if block:
                yield {name: value.getvalue() for name, value in block.items()}
            block, last = {}, ""
        elif line[0] in " \t":
            if last in block:
                block[last].write("\n" + ("" if line.strip() == "." else line.strip()))
        elif not line.startswith("#"):
            name, _, value = line.partition(":")
            last = name.lower()
            if last in wanted:
                block[last] = io.StringIO()
                block[last].write(value.strip())
