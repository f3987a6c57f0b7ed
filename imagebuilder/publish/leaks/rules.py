"""The rules as data: what to search for, how to confirm it, and what is known to be harmless."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.publish.leaks.checks import CHECKS

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class SecretFinding:
    """A secret, described without revealing it.

    Attributes:
        rule: the rule's name.
        about: what kind of secret it is.
        path: of the file in its layer; `(config)/...` for the image's config, `(attached)/...` for documents.
        line: in the file, from 1; 0 if the file is not text.
        hint: its first characters and its length.
        sha256: of the secret, by which known.yaml names it.
        inside: if the file is an archive, the path in it; else "".
        file: sha256 of the file, for `not_secret:` in a recipe.

    """

    rule: str
    about: str
    path: str
    line: int
    hint: str
    sha256: str
    inside: str = ""
    file: str = ""

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        inside = f" ({yamlfile.printable(self.inside)}{line})" if self.inside else line
        return f"{yamlfile.printable(self.path)}{inside}: {self.about} ({self.hint})"


def _expression(text: str) -> str:
    try:
        re.compile(text.encode())
    except re.error as error:
        raise yamlfile.Invalid(f"is not a regex: {error}", "mend it") from None
    return text


def _check_name(text: str) -> str:
    if text and text not in CHECKS:
        raise yamlfile.Invalid(f"`{text}` is not a check", f"checks: {', '.join(sorted(CHECKS))}")
    return text


_Expression = Annotated[str, AfterValidator(_expression)]


class Rule(Strict):
    """A format; rules.yaml explains the keys."""

    name: str
    about: str
    source: str
    anchors: tuple[Annotated[str, Field(min_length=2)], ...] = ()
    small: bool = False
    files: _Expression = ""
    pattern: _Expression
    back: int = 0
    named: bool = False
    check: Annotated[str, AfterValidator(_check_name)] = ""
    bits: Annotated[float, BeforeValidator(float)] = 0.0


class _Rules(Strict):
    rules: tuple[Rule, ...]
    placeholders: _Expression
    published: _Expression


class _Known(Strict):
    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    reason: Annotated[str, Field(min_length=10)]


class _KnownFile(Strict):
    known: tuple[_Known, ...]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A compiled rule."""

    rule: Rule
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    files: re.Pattern[str]


@dataclass(frozen=True, kw_only=True)
class SecretRules:
    """All compiled rules; `version` is a hash of everything that decides what is found."""

    formats: tuple[Format, ...]
    placeholders: re.Pattern[str]
    published: re.Pattern[str]
    known: frozenset[tuple[str, str]]
    version: str

    def is_known(self, path: str, sha256: str) -> bool:
        """Return True if this is test data of a package, or a reviewed false positive."""
        return bool(self.published.search(path)) or any(
            digest == sha256 and fnmatchcase(path, pattern) for pattern, digest in self.known
        )


@cache
def load() -> SecretRules:
    """Read the rules that come with the package."""
    given = yamlfile.validate(yamlfile.read(_FOLDER / "rules.yaml"), _Rules)
    known = yamlfile.validate(yamlfile.read(_FOLDER / "known.yaml"), _KnownFile)
    digest = hashlib.sha256()
    # Of data and code: if either changes, kept results are no longer valid.
    for path in sorted((*_FOLDER.glob("*.yaml"), *_FOLDER.glob("*.py"))):
        digest.update(path.read_bytes())
    return SecretRules(
        formats=tuple(
            Format(
                rule=rule,
                anchors=tuple(anchor.encode() for anchor in rule.anchors),
                pattern=re.compile(rule.pattern.encode()),
                files=re.compile(rule.files),
            )
            for rule in given.rules
        ),
        placeholders=re.compile(given.placeholders),
        published=re.compile(given.published),
        known=frozenset((item.path, item.sha256) for item in known.known),
        version=digest.hexdigest(),
    )
