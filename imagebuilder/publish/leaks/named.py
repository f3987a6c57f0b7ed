"""Decide whether a value without a format is a secret, by its name and the kind of its file.

There are three kinds of file. In each, these values count as secrets:

    CREDENTIALS   .env, /etc/default, units of systemd, cron, histories: any value that is not a placeholder
    SETTINGS      YAML, JSON, INI, scripts: a value that is not made of words
    TEXT          code, documents, logs: a value that looks random, in quotes if the language has them
"""

from __future__ import annotations

import itertools
import re
from enum import IntEnum
from functools import lru_cache
from typing import cast
from urllib.parse import unquote

from imagebuilder.publish.leaks.checks import entropy
from imagebuilder.publish.leaks.decoded import decode


class FileTrust(IntEnum):
    """How readily a value in this kind of file counts as a secret."""

    TEXT = 0
    SETTINGS = 1
    CREDENTIALS = 2


_CREDENTIALS = re.compile(
    r"^\(config\)/env|(?:^|/)(?:"
    r"\.env(?:rc)?(?:\.[\w-]+)*|[\w.-]+\.env(?:rc)?|env"
    r"|\.?(?:pip|my|wget|curl|aws|s3|boto|npm|pypi|conda|net)(?:rc|cfg|\.conf|\.cnf|\.cfg|\.ini|\.toml)|\.(?:boto|s3cfg)"
    r"|\.[a-z_]+_?history|\.?(?:bash|zsh)?(?:rc|profile|env|_profile|login)|credentials?|environment"
    r"|etc/apt/auth\.conf(?:\.d/.*)?|etc/(?:default|sysconfig|conf\.d|environment\.d|profile\.d|cron[^/]*)/.*|crontab|crontabs?/[^/]+|cron\.[a-z]+/.*"
    r"|[\w.@-]+\.(?:service|timer|socket|service\.d/[^/]+|tfvars|tfstate(?:\.backup)?|auto\.tfvars|env\.[\w-]+)"
    r")$"
)
_SETTINGS = re.compile(
    r"^\(config\)/|(?:^|/)(?:config|settings|(?:Docker|Container|Make|Jenkins|Vagrant|Pip|GNUmake)file(?:\.[\w-]+)?|makefile"
    r"|[^/]+\.(?:ini|cfg|conf|cnf|toml|ya?ml|json|properties|sh|bash|zsh|fish|list|sources|tf|xml|config|mk|sql|hcl|plist|desktop))$"
)
# Files in which a value needs no quotes. In other text it would be an expression.
_PROSE = re.compile(
    r"(?:^|/)(?:[^./]+|[^/]*\.(?:txt|md|rst|log|out|err|csv|tsv|http|eml|adoc|org)(?:\.\d+)?)$", re.IGNORECASE
)
# Words before `_key` in names of secrets. Most other names with `_key` are keys of mappings.
_KEY = re.compile(
    r"(?:^|[_.-])(?:api|access|secret|private|auth|account|encrypt(?:ion)?|sign(?:ing)?|master|service|app(?:lication)?|client|"
    r"storage|subscription|admin|jwt|session|deploy|wandb|root|openai|anthropic|ngc|token|shared|license|hmac|cookie|flask)[_-]?key",
    re.IGNORECASE,
)
_NOT_SECRET_NAME = re.compile(
    r"public|(?:^|[_-])(?:pad|eos|bos|sos|unk|sep|cls|mask|stop|next|special|page|continuation|image|max|min|num|n|fake|dummy|"
    r"example|sample|mock|foo|invalid|wrong|bad|expired|sync|resume|marker|cancel|scroll|ref|alg|algorithm|bypass|compass|by)[_.-]?"
    r"(?:token|secret|password|pass|key|passwd)|csrf|xsrf|tokenizer",
    re.IGNORECASE,
)
# Placeholders.
_PLACEHOLDER = re.compile(
    r"(?:.*(?:example|placeholder|change[_-]?(?:me|it|this)|dummy|redacted|your[_-]?|_here\b|insert|replace|sample|hunter2|scott|tiger|deadbeef|"
    r"123456789|abcdefgh|qwerty|xxxx|\*\*\*|\.\.\.|----|____|fake|mock|todo|fixme|notreal|not-a-real|lorem|\bnull\b|undefined|foobar|foo-?bar).*"
    r"|(?:user|my|the|some|a|db|test|root|admin|super|new|old|bad|wrong|good|default|no)?[\s_-]?(?:pass(?:w(?:or)?d|phrase)?|pwd|pw|secret|token|key|api[_-]?key|credentials?|test|admin|root|user(?:name)?|postgres|guest|public|none|string|str|text|value|required|optional)[\s_-]?[0-9!]{0,4}"
    r"|none|nil|null|true|false|yes|no|on|off|x+|0+|1+|-+|=+|\*+|\.+|#+|n/a|tbd|empty|unset|disabled?|enabled?|bearer|basic|env|file|vault|prompt|auto|str(?:ing)?|int|bytes|bool|any|optional|secrets?|"
    r"my[\s_-]\S{0,16}|foo|bar|baz|spam|eggs|abc(?:123|def)?|12345\w{0,4}|secret[_-]?(?:key|token|value|password)?\d*|letmein|passw0rd)",
    re.IGNORECASE,
)
# Part of a program, a reference, a path, an address, a template.
_EXPRESSION = re.compile(
    r"^[$<\[({]|^[%@&!*~^|][\w.-]*$|\$\{?\w|\{\{|\}\}|%\(|<\w+>|^(?:/|\.{1,2}/|~/|[a-z]+://|file:|env:|vault:|arn:|ref\+|projects/|op://|sha\d+:)"
    r"|#\{|[({]\S*[)}]|\w\(|^(?:os|self|this|process|args?|config|settings|request|kwargs|var|local|data|module|each|params?|options?|opts|env|ctx|secrets?|steps|inputs|vars|flags|cls)\.",
)
# Files in which backticks are quotes; in Python's docstrings they mark code.
_BACKTICK = re.compile(r"\.(?:[cm]?[jt]sx?|go|md|sh|txt)$")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
# Names, versions and dates: their parts are long on average, and pronounceable.
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_NAME_SIGNS = re.compile(r"[A-Za-z0-9\s_.:/+,@#-]+[.]?")
_UNSPOKEN = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}")
_LEAST_WORD = 3.4
# Text that looks random in code and documents: letters and digits, no spaces or brackets.
_PLAIN = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])(?:[A-Za-z0-9_]|.{32})[A-Za-z0-9+/=_.~!@#$%^&*?-]+")
_LEAST_AT_ALL, _LEAST, _LEAST_BARE, _LONG, _LONGEST_NUMBER = 4, 8, 12, 24, 5
_NO_START = ")]:#=.,;\\?"
# Files of a package are public anyway: examples and test data, the same on every host.
_PACKAGED = re.compile(
    r"(?:^|/)(?:(?:site|dist)-packages|node_modules|usr/(?:share|lib|include)|lib/python[23][^/]*)/"
)
_BACK = 64
_NAME = re.compile(rb"[\w.-]*$")


@lru_cache(maxsize=64)
def kind_of(name: str) -> FileTrust:
    """Return the kind of a file, by its name."""
    if _CREDENTIALS.search(name):
        return FileTrust.CREDENTIALS
    return FileTrust.SETTINGS if _SETTINGS.search(name) else FileTrust.TEXT


def accepts(found: re.Match[bytes], name: str) -> bool:
    """Return whether a match of a rule with `named` is a secret.

    Args:
        found: has the groups of the rule `named-secret`, or only `secret` if a command or call shows that
            it is a password.
        name: of the file.

    """
    value, kind = found["secret"].decode("utf-8", "replace"), kind_of(name)
    is_address = found[0].startswith(b"machine") or b"://" in found[0]
    if _PACKAGED.search(name) and kind is not FileTrust.CREDENTIALS and not is_address:
        return False
    if "word" not in found.re.groupindex:
        if found[0][:6].lower() == b"basic ":
            value = decode(found["secret"]).partition(b":")[2].decode("utf-8", "replace")
        return _looks_secret(unquote(value), kind if is_address else max(kind, FileTrust.SETTINGS))
    if not _is_assigned(found, name):
        return False
    if found["quote"]:
        return _looks_secret(value, kind)
    bare = value.rstrip(",;)]}>.&")
    is_long = kind is not FileTrust.TEXT or (_PROSE.search(name) is not None and len(bare) >= _LEAST_BARE)
    return is_long and _looks_secret(bare, kind)


def is_value(value: bytes) -> bool:
    """Return True if a value stored as a secret is one, and not a placeholder."""
    return _looks_secret(value.decode("utf-8", "replace").strip(), FileTrust.CREDENTIALS)


def _is_assigned(found: re.Match[bytes], name: str) -> bool:
    """Return True if the name is that of a secret, and the value is assigned to it."""
    before = found.string[max(0, found.start() - _BACK) : found.start()]
    head = cast("re.Match[bytes]", _NAME.search(before))[0]
    before = before[: len(before) - len(head)]
    word = (head + found["word"]).decode("latin-1")
    if _NOT_SECRET_NAME.search(word) or (word.lower().endswith("key") and not _KEY.search(word)):
        return False
    if found["quote"] and found["end"] != found["quote"]:
        return False
    if found["quote"] == b"`" and not _BACKTICK.search(name):
        return False
    after = found.string[found.end("secret") : found.end() + _BACK]
    # A token in the URL of a badge is public.
    if before.endswith((b"?", b"&")) and b"badge" in before + after:
        return False
    return _is_given(found, name, before, word)


def _is_given(found: re.Match[bytes], name: str, before: bytes, word: str) -> bool:
    """Return True if the text between name and value is an assignment."""
    separator, close = found["sep"], found["close"]
    if separator.strip() == b",":
        return bool(found["quote"]) and any(sign in close for sign in b"\"'")
    if separator == b">":
        return before.endswith(b"<") and b"</" in found["secret"]
    if separator.strip():
        return True
    # `--password X`, `ENV API_TOKEN X`, `requirepass X`.
    is_option = word.startswith("-") and not close
    is_setting = kind_of(name) > FileTrust.TEXT and word.lower().endswith("requirepass")
    return is_option or is_setting or before.endswith(b"ENV ")


def _looks_secret(value: str, kind: FileTrust) -> bool:
    """Return True if a value in this kind of file looks like a real secret."""
    value = value.partition("</")[0].strip()
    if len(value) < _LEAST_AT_ALL or _PLACEHOLDER.fullmatch(value) or _EXPRESSION.search(value):
        return False
    if kind is FileTrust.CREDENTIALS:
        return not value.isdigit() or len(value) > _LONGEST_NUMBER
    if (
        len(value) < _LEAST
        or " " in value
        or (value[0] in _NO_START and len(value) < _LONG)
        or _is_words(value)
    ):
        return False
    if kind is FileTrust.SETTINGS:
        return _changes(value) >= 0.2 and entropy(value.encode()) >= 2.5
    return (
        _PLAIN.fullmatch(value) is not None
        and not _UUID.fullmatch(value)
        and _changes(value) >= 0.25
        and entropy(value.encode()) >= 2.75
    )


def _is_words(value: str) -> bool:
    """Return True if a value is made of words and numbers: a name, a version, a date."""
    parts = _PARTS.findall(value)
    return (
        _NAME_SIGNS.fullmatch(value) is not None
        and len(value) >= _LEAST_WORD * len(parts)
        and not _UNSPOKEN.search(value)
    )


def _changes(text: str) -> float:
    """Return how often the kind of character changes, from 0 to 1: rarely in words, often in random text.

    >>> _changes("correcthorse"), _changes("a1b2c3")
    (0.0, 1.0)
    """
    kinds = [0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3 for c in text]
    return sum(a != b for a, b in itertools.pairwise(kinds)) / max(1, len(kinds) - 1)
