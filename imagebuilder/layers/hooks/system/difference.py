"""Runs in the new root: finds the differences from the base, and writes whiteouts for removed files.

Reads /imagebuilder/before, with a JSON list for each path of the base, one per line. Writes
/imagebuilder/paths: the paths of the layer with a NUL after each, folders before their content. It runs with
the image's Python, so it needs only the standard library of Python 3.9.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator

_HANDED = "imagebuilder"
_WHITEOUT = ".wh."
# Paths that engines mount over, and temporary files: our layers never contain them.
_MOUNTED = frozenset({"dev", "proc", "sys", _HANDED})
_PASSING = re.compile(
    r"(?:tmp|run|var/tmp|var/cache/apt|var/lib/apt/lists)/.*"
    r"|etc/(?:hostname|hosts|resolv\.conf|fstab|mtab)"
    r"|etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-"
    r"|var/cache/ldconfig/aux-cache|var/lib/dpkg/[^/]*-old|var/lib/dpkg/lock.*|var/cache/debconf/[^/]*-old"
    r"|root/\.(?:cache|gnupg)(?:/.*)?"
)
_LOGS = re.compile(r"var/log/.*")
Facts = tuple[str, int, int, int, int, str, str]  # kind, mode, owner, group, size, target, sha256
_KINDS = {stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


def main() -> None:
    before: dict[str, Facts] = {}
    with open(f"/{_HANDED}/before", encoding="utf-8") as lines:
        for line in lines:
            path, *facts = json.loads(line)
            before[path] = tuple(facts)
    mark = os.stat(f"/{_HANDED}/mark").st_ctime_ns
    there = dict(walk())
    changed = [
        path
        for path, status in there.items()
        if not passing(path, status) and differs(path, status, before.get(path), mark)
    ]
    # A whiteout removes everything below its path, so only the topmost removed paths need one.
    gone = [
        path
        for path in before
        if path not in there and not passing(path, None) and (parent(path) == "" or is_folder(there, path))
    ]
    for path in gone:
        folder, name = os.path.split(path)
        changed.append(os.path.join(folder, _WHITEOUT + name))
        with open(f"/{changed[-1]}", "w", encoding="utf-8"):
            pass
        os.chmod(f"/{changed[-1]}", 0o644)
    wanted = set(changed)
    for path in changed:
        while path := parent(path):
            wanted.add(path)
    with open(f"/{_HANDED}/paths", "wb") as out:
        for path in sorted(wanted):
            out.write(os.fsencode(path) + b"\0")


def walk() -> Iterator[tuple[str, os.stat_result]]:
    """Yield every path below the root, without its first slash, and its state."""
    stack = [""]
    while stack:
        folder = stack.pop()
        with os.scandir(f"/{folder}") as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if path in _MOUNTED:
                    continue
                status = entry.stat(follow_symlinks=False)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    stack.append(path)


def passing(path: str, status: os.stat_result | None) -> bool:
    """Return whether a path is never a part of the layer: temporary, or neither file, folder nor link."""
    if _PASSING.fullmatch(path):
        return True
    if status is None:
        return _LOGS.fullmatch(path) is not None
    kind = stat.S_IFMT(status.st_mode)
    return kind not in _KINDS or (kind == stat.S_IFREG and _LOGS.fullmatch(path) is not None)


def differs(path: str, status: os.stat_result, facts: Facts | None, mark: int) -> bool:
    """Return whether a path differs from the base, without comparing times."""
    if facts is None:
        return True
    kind, mode, uid, gid, size, link, sha256 = facts
    same = _KINDS[stat.S_IFMT(status.st_mode)] == kind and (status.st_uid, status.st_gid) == (uid, gid)
    if not same or kind == "link":
        return not same or os.readlink(f"/{path}") != link
    if stat.S_IMODE(status.st_mode) != mode:
        return True
    if kind == "dir" or status.st_ctime_ns <= mark:
        return False
    return status.st_size != size or content(path) != sha256


def content(path: str) -> str:
    digest = hashlib.sha256()
    with open(f"/{path}", "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def parent(path: str) -> str:
    return os.path.dirname(path)


def is_folder(there: dict[str, os.stat_result], path: str) -> bool:
    above = parent(path)
    return above in there and stat.S_ISDIR(there[above].st_mode)


main()
