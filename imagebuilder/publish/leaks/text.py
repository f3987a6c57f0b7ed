"""Apply the rules to text or binary data: a quick search for anchors, then the format of each hit."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from imagebuilder.publish.leaks import decoded, named
from imagebuilder.publish.leaks.checks import CHECKS, entropy
from imagebuilder.publish.leaks.host import Mark
from imagebuilder.publish.leaks.rules import Format, SecretFinding, SecretRules
from imagebuilder.publish.leaks.words import Words

# The longest match from its anchor; a private key of 16384 bits is shorter than that in base64.
AHEAD = 65_536
# How far before its anchor a match or its name may begin; larger than every rule's `back`.
BEHIND = 512
_SHOWN = 4
_HEAD = 1024
# Base64 of base64 is decoded, deeper nesting is not.
_DEPTH = 2


@dataclass(frozen=True, kw_only=True)
class TextPlace:
    """The location of data: a file in a layer, or a member of an archive.

    Attributes:
        path: of the file in its layer.
        inside: path of the member; "" for the file itself.
        name: the innermost path, by which rules select files.

    """

    path: str
    inside: str = ""
    name: str = ""

    @classmethod
    def of(cls, path: str) -> TextPlace:
        """Return the location of a file."""
        return cls(path=path, name=path)

    def member(self, name: str) -> TextPlace:
        """Return the location of a member of this archive."""
        inside = f"{self.inside}/{name}" if self.inside else name
        return TextPlace(path=self.path, inside=inside, name=name)

    @property
    def shown(self) -> str:
        """Return the path, with the path inside of the archive."""
        return f"{self.path} ({self.inside})" if self.inside else self.path


class Hit(NamedTuple):
    """An anchor at a position: the format to try, or the mark of this host."""

    position: int
    what: Format | Mark


class Search:
    """Rules and marks compiled into one search; each worker keeps it, because compiling takes long."""

    def __init__(self, rules: SecretRules, marks: Sequence[Mark]) -> None:
        self.rules = rules
        self.paths = tuple(mark for mark in marks if mark.kind == "host-path")
        anchors = [(anchor, item) for item in rules.formats for anchor in item.anchors]
        self._everywhere: Words[Format | Mark] = Words(
            [
                *((anchor, item) for anchor, item in anchors if not item.rule.small),
                *((mark.data, mark) for mark in marks),
            ]
        )
        self._small = Words([(anchor, item) for anchor, item in anchors if item.rule.small])
        self._whole = tuple(item for item in rules.formats if item.rule.files)
        self._chosen = re.compile("|".join(f"(?:{item.rule.files})" for item in self._whole))
        self._starts = tuple(item for item in rules.formats if not (item.anchors or item.rule.files))
        self.longest = self._everywhere.longest

    def hits(self, data: bytes) -> Iterator[Hit]:
        """Find every mark, and every anchor that is searched in all bytes."""
        for position, what in self._everywhere.find(data):
            yield Hit(position, what)

    def confirm(self, hit: Hit, data: bytes, low: int, high: int, place: TextPlace) -> SecretFinding | None:
        """Examine a hit.

        Args:
            hit: in `data`.
            data: has the file, or a part of it.
            low: where the file begins in `data`.
            high: where it ends.
            place: of the file.

        """
        if isinstance(hit.what, Mark):
            return self.marked(hit.what, place, _line(data, low, hit.position))
        item, end = hit.what, min(high, hit.position + AHEAD)
        # Not `search`: for a meaningless anchor it would scan to the end of the data.
        for start in range(max(low, hit.position - item.rule.back), hit.position + 1):
            if found := item.pattern.match(data, start, end):
                break
        else:
            return None
        if found.end() <= hit.position or (item.rule.named and not named.accepts(found, place.name)):
            return None
        secret = found["secret"] or found.groupdict().get("later") or b""
        return self._finding(item, secret, place, _line(data, low, found.start()))

    def marked(self, mark: Mark, place: TextPlace, line: int) -> SecretFinding:
        """Return the finding for a mark."""
        return SecretFinding(
            rule=mark.kind, about=mark.about, path=place.path, line=line, hint=mark.hint, sha256="",
            inside=place.inside,
        )  # fmt: skip

    def text(self, data: bytes, place: TextPlace) -> Iterator[SecretFinding]:
        """Apply everything to one piece of data in memory."""
        for hit in self.hits(data):
            if finding := self.confirm(hit, data, 0, len(data), place):
                yield finding
        yield from self.rest(data, place)

    def rest(self, data: bytes, place: TextPlace, depth: int = 0) -> Iterator[SecretFinding]:
        """Apply the rules that need a whole file."""
        is_text = b"\0" not in data[:_HEAD]
        for position, item in self._small.find(data):
            # Rules that decide by a name are for text: in a binary, any two words may be side by side.
            if (is_text or not item.rule.named) and (
                finding := self.confirm(Hit(position, item), data, 0, len(data), place)
            ):
                yield finding
        if self._chosen.search(place.name):
            for item in self._whole:
                if item.rule.files and item.files.search(place.name):
                    yield from self._all(item, data, place)
        for item in self._starts:
            yield from self._all(item, data, place)
        if depth < _DEPTH:
            yield from self._decoded(data, place, depth + 1)

    def _all(self, item: Format, data: bytes, place: TextPlace) -> Iterator[SecretFinding]:
        """Apply a rule for whole files."""
        matches = item.pattern.finditer(data) if item.rule.files else filter(None, [item.pattern.match(data)])
        for found in matches:
            finding = self._finding(item, found["secret"], place, _line(data, 0, found.start()))
            if finding:
                yield finding

    def _decoded(self, data: bytes, place: TextPlace, depth: int) -> Iterator[SecretFinding]:
        """Apply all rules to decoded parts of a file."""
        if text := decoded.utf16(data):
            yield from self._again(text, place, depth)
        for position, text in decoded.runs(data, place.name):
            line = _line(data, 0, position)
            for finding in self._again(text, place, depth):
                yield dataclasses.replace(finding, line=line)
        for position, text in decoded.kubernetes(data):
            if value := self._in_manifest(text, place, _line(data, 0, position)):
                yield value

    def _again(self, data: bytes, place: TextPlace, depth: int) -> Iterator[SecretFinding]:
        for hit in self.hits(data):
            if finding := self.confirm(hit, data, 0, len(data), place):
                yield finding
        yield from self.rest(data, place, depth)

    def _in_manifest(self, value: bytes, place: TextPlace, line: int) -> SecretFinding | None:
        """Return the finding for a value of a Kubernetes Secret."""
        item = next(item for item in self._starts if item.rule.name == "kubernetes-secret")
        return self._finding(item, value, place, line) if named.is_value(value) else None

    def _finding(self, item: Format, secret: bytes, place: TextPlace, line: int) -> SecretFinding | None:
        rule, digest = item.rule, hashlib.sha256(secret).hexdigest()
        if rule.check and not CHECKS[rule.check](secret):
            return None
        if rule.bits and (entropy(secret) < rule.bits or self._is_placeholder(secret)):
            return None
        if self.rules.is_known(place.path, digest):
            return None
        return SecretFinding(
            rule=rule.name, about=rule.about, path=place.path, line=line, hint=_hint(secret), sha256=digest,
            inside=place.inside,
        )  # fmt: skip

    def _is_placeholder(self, secret: bytes) -> bool:
        return bool(self.rules.placeholders.search(secret.decode("utf-8", "replace").lower()))


def without_repeats(findings: Sequence[SecretFinding]) -> tuple[SecretFinding, ...]:
    """Drop findings by name if a rule with a format found something in the same line."""
    plain = {"named-secret", "authorization-header", "kubernetes-secret", "command-password", "call-password"}
    sure = {(item.path, item.inside, item.line) for item in findings if item.rule not in plain}
    seen: set[tuple[str, str, int, str]] = set()
    kept = []
    for item in findings:
        key = (item.path, item.inside, item.line, item.sha256)
        if item.rule in plain and ((item.path, item.inside, item.line) in sure or key in seen):
            continue
        seen.add(key)
        kept.append(item)
    return tuple(kept)


def _hint(secret: bytes) -> str:
    """Return enough of a secret to find it, but not enough to use it."""
    text = secret.strip().decode("ascii", "replace")
    head = "".join(char if char.isprintable() and char != "\ufffd" else "?" for char in text[:_SHOWN])
    return f"{head}..., {len(secret)} bytes" if len(secret) >= 3 * _SHOWN else f"{len(secret)} bytes"


def _line(data: bytes, low: int, position: int) -> int:
    """Return the line number of a position; 0 if the data before it is not text."""
    if position - low > 1 << 20 or b"\0" in data[max(low, position - 1024) : position]:
        return 0
    return data.count(b"\n", low, position) + 1
