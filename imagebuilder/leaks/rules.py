"""The rules as data: what to look for, how to be sure, and what is known to be harmless."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from imagebuilder import yamlfile
from imagebuilder.leaks.checks import CHECKS

# Another way of reading layers finds other things: raise it, and remembered results no longer count.
_FORMAT = 1
_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One secret, told without telling it.

    Attributes:
        rule: the rule's name.
        about: what kind of secret it is.
        path: of the file in its layer; `(config)/...` for the image's config.
        line: in the file, from 1; 0 in a file that is not text.
        hint: its first characters and its length.
        sha256: of the secret, by which known.yaml names it.

    """

    rule: str
    about: str
    path: str
    line: int
    hint: str
    sha256: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{yamlfile.printable(self.path)}{line}: {self.about} ({self.hint})"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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


class Rule(_Strict):
    """One format; rules.yaml says what the keys mean."""

    name: str
    about: str
    source: str
    anchors: tuple[Annotated[str, Field(min_length=3)], ...] = ()
    files: _Expression = ""
    pattern: _Expression
    back: int = 0
    check: Annotated[str, AfterValidator(_check_name)] = ""
    bits: Annotated[float, BeforeValidator(float)] = 0.0


class _Rules(_Strict):
    rules: tuple[Rule, ...]
    placeholders: _Expression


class _Known(_Strict):
    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    reason: Annotated[str, Field(min_length=10)]


class _KnownFile(_Strict):
    known: tuple[_Known, ...]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A rule, ready for use."""

    rule: Rule
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    files: re.Pattern[str] | None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules, ready for use; `version` is a hash of everything that decides what is found."""

    formats: tuple[Format, ...]
    placeholders: re.Pattern[str]
    known: frozenset[tuple[str, str]]
    version: str

    def is_known(self, path: str, sha256: str) -> bool:
        return any(digest == sha256 and path.endswith(end) for end, digest in self.known)


@cache
def load() -> Rules:
    """Read the rules that come with the package."""
    sources = (_FOLDER / "rules.yaml", _FOLDER / "known.yaml", _FOLDER / "checks.py")
    given = yamlfile.validate(yamlfile.read(sources[0]), _Rules)
    known = yamlfile.validate(yamlfile.read(sources[1]), _KnownFile)
    digest = hashlib.sha256(f"{_FORMAT}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    return Rules(
        formats=tuple(
            Format(
                rule=rule,
                anchors=tuple(anchor.encode() for anchor in rule.anchors),
                pattern=re.compile(rule.pattern.encode()),
                files=re.compile(rule.files) if rule.files else None,
            )
            for rule in given.rules
        ),
        placeholders=re.compile(given.placeholders),
        known=frozenset((item.path, item.sha256) for item in known.known),
        version=digest.hexdigest(),
    )
