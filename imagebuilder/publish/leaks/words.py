"""Search bytes for many words in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from ahocorasick_rs import BytesAhoCorasick, MatchKind

# The SIMD search handles up to 64 words; with more, the search is ten times slower.
_MOST = 60
_Owner = TypeVar("_Owner")


class Words(Generic[_Owner]):
    """Words and their meanings; each worker keeps it, because compiling takes long."""

    def __init__(self, owned: Sequence[tuple[bytes, _Owner]]) -> None:
        self.longest = max((len(word) for word, _ in owned), default=1)
        parts = [owned[at : at + _MOST] for at in range(0, len(owned), _MOST)]
        # The first is quick but finds no match inside another; the second does, at an eighth of the speed.
        self._parts = [
            (
                BytesAhoCorasick([word for word, _ in part], matchkind=MatchKind.LeftmostFirst),
                BytesAhoCorasick([word for word, _ in part]),
                [owner for _, owner in part],
                _crowded([word for word, _ in part]),
            )
            for part in parts
        ]

    def find(self, data: bytes) -> Iterator[tuple[int, _Owner]]:
        """Find every word: its position and meaning.

        The quick search misses only words that begin inside one of its matches. So the thorough search looks
        there, if another word can begin inside this one at all.
        """
        for quick, thorough, owners, crowded in self._parts:
            for index, low, high in quick.find_matches_as_indexes(data):
                if index not in crowded:
                    yield low, owners[index]
                    continue
                near = data[low : high - 1 + self.longest]
                for inner, start, _ in thorough.find_matches_as_indexes(near, overlapping=True):
                    if low + start < high:
                        yield low + start, owners[inner]


def _crowded(words: Sequence[bytes]) -> frozenset[int]:
    """Return the words inside which another word, or the same one again, can begin."""
    whole = Counter(words)
    starts = Counter(word[:end] for word in words for end in range(1, len(word) + 1))

    def holds(tail: bytes) -> bool:
        """Return whether a word begins with these bytes, or ends within them."""
        return tail in starts or any(tail[:end] in whole for end in range(1, len(tail)))

    return frozenset(
        index
        for index, word in enumerate(words)
        # It is a start of itself.
        if starts[word] > 1
        or any(word[:end] in whole for end in range(1, len(word)))
        or any(holds(word[at:]) for at in range(1, len(word)))
    )
