"""Tars in parts, laid over each other as layers are."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import BinaryIO

Entry = tuple[bytes, int, int, int, str, float, str, str, tuple[tuple[str, str], ...]]
"""Type, mode, user, group, their names, time, target, hash of the content, and pax headers."""


def entries_of(tar: bytes | BinaryIO) -> dict[str, Entry]:
    """Tell all that a tar says of each path."""
    file = io.BytesIO(tar) if isinstance(tar, bytes) else tar
    found: dict[str, Entry] = {}
    with tarfile.open(fileobj=file, mode="r|") as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isreg() else None
            found[member.name] = (
                member.type,
                member.mode,
                member.uid,
                member.gid,
                f"{member.uname}:{member.gname}",
                member.mtime,
                member.linkname,
                hashlib.sha256(content.read()).hexdigest() if content else "",
                tuple(sorted(member.pax_headers.items())),
            )
    return found


def union_of(parts: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Lay parts over each other: only a folder may be in several, and then it is the same in all.

    A hard link is in the part of its target, for a layer is unpacked before the next is looked at.
    """
    union: dict[str, Entry] = {}
    for found in parts:
        for name, entry in found.items():
            assert name not in union or (union[name] == entry and entry[0] == tarfile.DIRTYPE), name
            assert entry[0] != tarfile.LNKTYPE or entry[6] in found, name
            parent = name.rpartition("/")[0]
            assert not parent or parent in found, f"{name} lacks its folder"
        union |= found
    return union
