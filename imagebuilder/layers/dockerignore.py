"""`.dockerignore`: which files of a folder are excluded. The rules are Docker's, in bounded time.

https://docs.docker.com/build/concepts/context/#dockerignore-files, and what BuildKit does with it
(moby/patternmatcher): the last rule that matches a path, or a folder above it, decides. A pattern is compared
with a path name by name, which takes at most as many steps as the product of their lengths.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError

NAME = ".dockerignore"
_MOST_RULES = 1000
# For each rule, whether it matches a path or a folder above it.
Matches = tuple[bool, ...]
# Stands for `**`: any number of names.
_ANY = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One line: a pattern for each name of a path, and whether the line keeps what it matches (`!`)."""

    names: tuple[re.Pattern[str] | None, ...]
    keeps: bool

    def matches(self, path: Sequence[str]) -> bool:
        """Compare a path, given by its names."""
        places = {0}  # the numbers of leading names that the patterns so far can match
        for number, pattern in enumerate(self.names):
            if pattern is not _ANY:
                places = {place + 1 for place in places if place < len(path) and pattern.match(path[place])}
            elif places:
                # A final `**` matches at least one name: `data/**` does not match `data` itself.
                least = min(places) + (number == len(self.names) - 1)
                places = set(range(least, len(path) + 1))
        return len(path) in places


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All lines of a file, in its order."""

    rules: tuple[Rule, ...] = ()

    @property
    def keeps_some(self) -> bool:
        """Whether some rule may keep a file below an excluded folder."""
        return any(rule.keeps for rule in self.rules)

    def matches(self, path: Sequence[str], above: Matches) -> Matches:
        """Compare a path with every rule; `above` is the result for its folder, or empty."""
        known = above or (False,) * len(self.rules)
        return tuple(held or rule.matches(path) for rule, held in zip(self.rules, known, strict=True))

    def excludes(self, matches: Matches) -> bool:
        """Return whether a path with these matches is excluded."""
        decided = (rule for rule, matched in zip(self.rules[::-1], matches[::-1], strict=True) if matched)
        last = next(decided, None)
        return last is not None and not last.keeps


def parse(text: str, where: str) -> Rules:
    """Read the text of a `.dockerignore`.

    Args:
        text: the file's text.
        where: the file's path, for messages.

    Raises:
        InputError: a line is not a valid pattern, or there are too many; names the line.

    """
    rules: list[Rule] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        pattern = line.strip()
        if line.startswith("#") or not pattern:
            continue
        try:
            rule = _rule(pattern)
        except (ValueError, re.error) as error:
            raise InputError(
                f"`{printable(pattern)}` is not a pattern: {error}",
                where=f"{where}:{number}",
                hint="patterns are Docker's: `*.log`, `data/`, `**/*.ckpt`, `!data/small`",
            ) from None
        if rule is not None:
            rules.append(rule)
        if len(rules) > _MOST_RULES:
            raise InputError(
                f"has more than {_MOST_RULES} rules", where=f"{where}:{number}", hint="name folders instead"
            )
    return Rules(rules=tuple(rules))


def _rule(line: str) -> Rule | None:
    keeps = line.startswith("!")
    pattern = line.removeprefix("!").strip()
    if not pattern:
        raise ValueError("nothing follows the `!`")
    pattern = posixpath.normpath(pattern).lstrip("/")
    names = pattern.split("/")
    # The folder itself and paths above it: no path inside can match.
    if names[0] in {"", ".", ".."}:
        return None
    # Docker reads `**.log` as `**/*.log`, and `temp**` as `temp*` with everything below.
    if names[0].startswith("**") and names[0] != "**":
        names[:1] = ["**", names[0][1:]]
    if names[-1].endswith("**") and names[-1] != "**":
        names[-1] = names[-1][:-1]
    if any("**" in name and name != "**" for name in names):
        raise ValueError("`**` must be between slashes, or at an end")
    return Rule(names=tuple(_ANY if name == "**" else _name(name) for name in names), keeps=keeps)


def _name(text: str) -> re.Pattern[str]:
    """Translate the pattern of one name to a regular expression.

    The text between two `*` has a fixed length, so its first match is as good as a later one. Atomic groups
    keep the first match, so that no text is tried twice.
    """
    pieces = [""]
    rest = text
    while rest:
        char, rest = rest[0], rest[1:]
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "."
        elif char == "[":
            inside, bracket, rest = rest.partition("]")
            if not bracket or not inside.strip("^"):
                raise ValueError("a `[` has no `]`")
            escaped = inside.removeprefix("^").replace("\\", "\\\\").replace("[", "\\[")
            pieces[-1] += f"[{'^' if inside.startswith('^') else ''}{escaped}]"
        else:
            if char == "\\" and rest:
                char, rest = rest[0], rest[1:]
            pieces[-1] += re.escape(char)
    first, *others = pieces
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    last = f".*{others[-1]}" if others else ""
    return re.compile(f"{first}{middle}{last}\\Z", re.DOTALL)
