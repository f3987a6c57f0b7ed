"""Groups of Debian packages that share a layer of the system, by purpose (groups.yaml). Pure.

One layer of all packages would be pushed and pulled whole for every security update; a layer for each would
be hundreds. So packages are grouped by what they are for. Where a package goes depends on its own source
package alone (but for large ones of no purpose known here), so no other change moves it to another layer.
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
# Of what belongs to no purpose, which is mostly what `apt:` asks for, a source package of this size has a
# layer of its own, as a wheel has; but no more of them than this.
_OWN_LAYER_BYTES = 8_000_000
_MOST_ALONE = 8
_OTHER = "other"
_WILD = re.compile(r"[*?\[]")


class _Purpose(Strict):
    title: Annotated[str, Field(description="What people call it.")]
    sources: Annotated[tuple[str, ...], Field(description="Names of source packages; `*` for a version.")]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Packages that share a layer.

    Attributes:
        name: a purpose of groups.yaml, `other`, or `source:NAME` for a large source package of no purpose.
        title: what people call it.
        debs: in the order that they came in; at least one.

    """

    name: str
    title: str
    debs: tuple[Deb, ...]


def of(debs: Iterable[Deb]) -> tuple[Group, ...]:
    """Group packages; the base comes first, and what has no purpose known here last."""
    found: dict[str, list[Deb]] = {}
    for deb in debs:
        found.setdefault(source(deb), []).append(deb)
    alone = set(_alone({name: sum(deb.size for deb in there) for name, there in found.items()}))
    groups: dict[str, list[Deb]] = {}
    for name, there in found.items():
        group = _purpose(name) or (f"source:{name}" if name in alone else _OTHER)
        groups.setdefault(group, []).extend(there)
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
    """Name a package's source package: an archive keeps it in a folder of that name (Debian Policy 5.6.1).

    In an archive without a pool there is no such folder; then the package stands for itself.
    """
    folders = deb.path.split("/")[:-1]
    return folders[-1] if "pool" in folders and folders[-1] != "pool" else deb.name


def _alone(sizes: Mapping[str, int]) -> list[str]:
    """Choose the source packages of no purpose that are large enough for a layer of their own."""
    large = [name for name, size in sizes.items() if size >= _OWN_LAYER_BYTES and not _purpose(name)]
    return sorted(large, key=lambda name: (-sizes[name], name))[:_MOST_ALONE]


def _order(deb: Deb) -> tuple[str, str]:
    return deb.name, deb.architecture


@cache
def _purpose(source: str) -> str:
    """Name the purpose of a source package; empty where none is known."""
    for beginning, pattern, name in _patterns():
        # Most are seen to match, or not to, without being compiled for that.
        if source.startswith(beginning) and (source == pattern or fnmatchcase(source, pattern)):
            return name
    return ""


@cache
def _patterns() -> tuple[tuple[str, str, str], ...]:
    """List what comes before the first wildcard of each pattern, the pattern, and its purpose; in order."""
    return tuple(
        (_WILD.split(pattern, maxsplit=1)[0], pattern, name)
        for name, purpose in _purposes().items()
        for pattern in purpose.sources
    )


@cache
def _purposes() -> dict[str, _Purpose]:
    raw = resources.files("imagebuilder.plan").joinpath(_FILE).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/{_FILE}"), Table[_Purpose]).root
