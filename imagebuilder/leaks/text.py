"""A piece of text or binary data against the rules: a quick search for anchors, then each format in full."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from imagebuilder.leaks.checks import CHECKS, entropy
from imagebuilder.leaks.host import Mark
from imagebuilder.leaks.rules import Finding, Format, Rules

# The longest match counts from its anchor; a private key of 16384 bits is below that in base64.
AHEAD = 65_536
# The farthest that a match begins before its anchor; above every rule's `back`.
BEHIND = 256
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Hit:
    """An anchor at a place: the format to try, or the mark of this host that it is."""

    position: int
    what: Format | Mark


class Search:
    """Rules and marks made into one search; kept by each worker, as making it takes longer than using it."""

    def __init__(self, rules: Rules, marks: Sequence[Mark]) -> None:
        self.rules = rules
        self.paths = tuple(mark for mark in marks if mark.kind == "host-path")
        anchors = [(anchor, item) for item in rules.formats for anchor in item.anchors]
        owned: list[tuple[bytes, Format | Mark]] = [*anchors, *((mark.data, mark) for mark in marks)]
        words = [word for word, _ in owned]
        self._owners = [owner for _, owner in owned]
        self._longest = max(map(len, words), default=0)
        # The one takes many bytes in one instruction and finds no match inside another; the other does, at an
        # eighth of the speed.
        self._quick = BytesAhoCorasick(words, matchkind=MatchKind.LeftmostFirst)
        self._thorough = BytesAhoCorasick(words)

    def hits(self, data: bytes) -> Iterator[Hit]:
        """Find every anchor and mark, in order of their starts or close to it.

        What the quick search leaves out begins inside a match that it finds: there the thorough one looks.
        """
        for _, low, high in self._quick.find_matches_as_indexes(data):
            near = data[low : high - 1 + self._longest]
            for index, start, _ in self._thorough.find_matches_as_indexes(near, overlapping=True):
                if low + start < high:
                    yield Hit(position=low + start, what=self._owners[index])

    def wants(self, path: str) -> tuple[Format, ...]:
        """Name the rules that look at the whole of a file with this path."""
        return tuple(item for item in self.rules.formats if item.files and item.files.search(path))

    def confirm(self, hit: Hit, data: bytes, low: int, high: int, path: str) -> Finding | None:
        """Look at a hit in full.

        Args:
            hit: in `data`.
            data: holds the file, or a part of it.
            low: where the file's part begins there.
            high: where it ends.
            path: of the file.

        """
        if isinstance(hit.what, Mark):
            return self.marked(hit.what, path, _line(data, low, hit.position))
        item, end = hit.what, min(high, hit.position + AHEAD)
        starts = range(max(low, hit.position - item.rule.back), hit.position + 1)
        # Not `search`: it would go on to the end of what is there for every anchor that means nothing.
        found = next((match for start in starts if (match := item.pattern.match(data, start, end))), None)
        if not found or found.end() <= hit.position:
            return None
        return self._finding(item, found["secret"], path, _line(data, low, found.start()))

    def marked(self, mark: Mark, path: str, line: int) -> Finding:
        """Tell of a mark that was found."""
        return Finding(rule=mark.kind, about=mark.about, path=path, line=line, hint=mark.hint, sha256="")

    def whole(self, item: Format, data: bytes, path: str) -> Iterator[Finding]:
        """Apply a rule that looks at whole files."""
        for found in item.pattern.finditer(data):
            finding = self._finding(item, found["secret"], path, _line(data, 0, found.start()))
            if finding:
                yield finding

    def text(self, data: bytes, path: str) -> Iterator[Finding]:
        """Apply everything to one piece of data in memory."""
        for hit in self.hits(data):
            if finding := self.confirm(hit, data, 0, len(data), path):
                yield finding
        for item in self.wants(path):
            yield from self.whole(item, data, path)

    def _finding(self, item: Format, secret: bytes, path: str, line: int) -> Finding | None:
        rule, digest = item.rule, hashlib.sha256(secret).hexdigest()
        if rule.check and not CHECKS[rule.check](secret):
            return None
        if rule.bits and (entropy(secret) < rule.bits or self._is_placeholder(secret)):
            return None
        if self.rules.is_known(path, digest):
            return None
        return Finding(
            rule=rule.name, about=rule.about, path=path, line=line, hint=_hint(secret), sha256=digest
        )

    def _is_placeholder(self, secret: bytes) -> bool:
        return bool(self.rules.placeholders.search(secret.decode("utf-8", "replace").lower()))


def _hint(secret: bytes) -> str:
    """Show enough to find a secret again, and not enough to use it."""
    text = secret.strip().decode("ascii", "replace")
    head = "".join(char if char.isprintable() and char != "\ufffd" else "?" for char in text[:_SHOWN])
    return f"{head}..., {len(secret)} bytes" if len(secret) >= 3 * _SHOWN else f"{len(secret)} bytes"


def _line(data: bytes, low: int, position: int) -> int:
    """Count lines up to a position; 0 where the data before it is no text."""
    if position - low > 1 << 20 or b"\0" in data[max(low, position - 1024) : position]:
        return 0
    return data.count(b"\n", low, position) + 1
