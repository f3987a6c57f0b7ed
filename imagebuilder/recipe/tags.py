"""Templates of tags: `torch{torch}-cu{cuda:2}`, filled with the versions of a lock.

`{name}` is a locked version; `{name:2}` is its first two parts, so 12.8.90 gives `12.8`. The OCI distribution
specification, "Pulling manifests", says which tags registries accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from imagebuilder.core.reference import TAG
from imagebuilder.core.yamlfile import Invalid, nearest, printable

# Fields of every recipe, besides the pins.
FIELDS = frozenset({"name", "python", "suite", "lock"})
_LONGEST = 128
# How many digits of the lock's checksum a tag has.
LOCK_DIGITS = 12

_FIELD = re.compile(r"\{([a-z][a-z0-9_-]*)(?::([1-9]))?\}")


def check(template: str) -> str:
    """Return a template.

    Raises:
        Invalid: it is not a template, or no registry would accept the resulting tag.

    """
    sample = _FIELD.sub("0", template)
    if "{" in sample or "}" in sample:
        raise Invalid(
            f"`{printable(template)}` is not a tag template",
            "write a field as {torch}, or {cuda:2} for the first two parts of its version",
        )
    if not TAG.fullmatch(sample):
        raise Invalid(
            f"`{printable(template)}` does not give a valid tag",
            "at most 128 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`",
        )
    return template


def unknown(template: str, known: frozenset[str]) -> tuple[str, str] | None:
    """Return a message and a hint for the first unknown field; None if all are known."""
    for name, _ in _FIELD.findall(template):
        if name not in known:
            hint = nearest(name, known) or f"fields: {', '.join(sorted(known))}"
            return f"`{{{name}}}` is neither pinned here nor a field of every recipe", hint
    return None


def of_platform(tag: str, platform: str) -> str:
    """Return the tag of one platform's image; the tag without the ending is that of the index.

    >>> of_platform("torch2.10.0-py3.13", "linux/arm64")
    'torch2.10.0-py3.13-arm64'
    """
    ending = f"-{platform.partition('/')[2]}"
    return tag[: _LONGEST - len(ending)] + ending


def in_repository(tags: Iterable[str], version: str, recipe: str, repository: str) -> tuple[str, ...]:
    """Put the recipe's name before the tag made of versions, unless the repository has that name.

    Recipes with the same versions would overwrite each other's tag in a repository that they share.

    >>> in_repository(["py3.13-trixie", "latest"], "py3.13-trixie", "demo", "team/images")
    ('demo-py3.13-trixie', 'latest')
    >>> in_repository(["py3.13-trixie", "latest"], "py3.13-trixie", "demo", "team/demo")
    ('py3.13-trixie', 'latest')
    """
    if repository.rpartition("/")[2] == recipe:
        return tuple(tags)
    return tuple(f"{recipe}-{tag}"[:_LONGEST] if tag == version else tag for tag in tags)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template with versions, without their local part (`+cu128`); `:2` takes the first two parts.

    >>> fill("torch{torch}-cu{cuda:2}", {"torch": "2.10.0+cu128", "cuda": "12.8.90"})
    'torch2.10.0-cu12.8'
    """

    def value(field: re.Match[str]) -> str:
        text = values[field[1]].partition("+")[0]
        shown = ".".join(text.split(".")[: int(field[2])]) if field[2] else text
        # Versions may hold characters that tags may not: an epoch's `:` or `!`, Debian's `~`.
        return re.sub(r"[^A-Za-z0-9._-]", "-", shown)

    return _FIELD.sub(value, template)
