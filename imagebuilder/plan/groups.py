"""Group Debian packages that share a layer, by purpose (groups.yaml). Pure.

With one layer for all packages, every security update would push and pull all of them. One layer for each
would make hundreds. So packages are grouped by purpose. A package's group depends only on its source package
(except for large packages without a known purpose), so changes in other packages do not move it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict, Table
from imagebuilder.lock.model import Deb

_FILE = "groups.yaml"
# Among packages without a known purpose (mostly those of `apt:`), the source packages from this size on get
# their own layer, up to this number.
_OWN_LAYER_BYTES = 8_000_000
_MOST_ALONE = 8
_OTHER = "other"
_WILD = re.compile(r"[*?\[]")


class _Purpose(Strict):
    title: Annotated[str, Field(description="Title for people.")]
    sources: Annotated[tuple[str, ...], Field(description="Names of source packages; `*` for a version.")]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Packages that share a layer.

    Attributes:
        name: a purpose of groups.yaml, `other`, or `source:NAME` for a large source package of no purpose.
        title: title for people.
        debs: its packages, sorted by name; at least one.

    """

    name: str
    title: str
    debs: tuple[Deb, ...]


def of(debs: Iterable[Deb]) -> tuple[Group, ...]:
    """Group packages, in the order of groups.yaml; those without a known purpose come last."""
    by_source: dict[str, list[Deb]] = {}
    for deb in debs:
        by_source.setdefault(source(deb), []).append(deb)
    alone = set(_alone({name: sum(deb.size for deb in own) for name, own in by_source.items()}))
    groups: dict[str, list[Deb]] = {}
    for name, own in by_source.items():
        group = _purpose(name) or (f"source:{name}" if name in alone else _OTHER)
        groups.setdefault(group, []).extend(own)
    titles = {
        **{name: purpose.title for name, purpose in _purposes().items()},
        **{f"source:{name}": name for name in sorted(alone)},
        _OTHER: "other packages",
    }
    return tuple(
        Group(name=name, title=title, debs=tuple(sorted(groups[name], key=_order)))
        for name, title in titles.items()
        if name in groups
    )


def source(deb: Deb) -> str:
    """Return a package's source package: the name of its folder in the archive (Debian Policy 5.6.1).

    Archives without a pool have no such folder: then it is the package's own name.
    """
    folders = deb.path.split("/")[:-1]
    return folders[-1] if "pool" in folders and folders[-1] != "pool" else deb.name


def _alone(sizes: Mapping[str, int]) -> list[str]:
    """Return the source packages without a purpose that are large enough for their own layer."""
    large = [name for name, size in sizes.items() if size >= _OWN_LAYER_BYTES and not _purpose(name)]
    return sorted(large, key=lambda name: (-sizes[name], name))[:_MOST_ALONE]


def _order(deb: Deb) -> tuple[str, str]:
    return deb.name, deb.architecture


@cache
def _purpose(source: str) -> str:
    """Return the purpose of a source package; "" if none is known."""
    for beginning, pattern, name in _patterns():
        # The cheap comparisons come first: they settle most cases without a regex.
        if source.startswith(beginning) and (source == pattern or fnmatchcase(source, pattern)):
            return name
    return ""


@cache
def _patterns() -> tuple[tuple[str, str, str], ...]:
    """Return the text before each pattern's first wildcard, the pattern and its purpose, in order."""
    return tuple(
        (_WILD.split(pattern, maxsplit=1)[0], pattern, name)
        for name, purpose in _purposes().items()
        for pattern in purpose.sources
    )


@cache
def _purposes() -> dict[str, _Purpose]:
    raw = resources.files("imagebuilder.plan").joinpath(_FILE).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/{_FILE}"), Table[_Purpose]).root
