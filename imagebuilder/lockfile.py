"""What one lock file holds: the lock of a recipe, or one for each of its platforms.

A recipe for one platform has a lock as `lock.py` describes it, and nothing around it. For several the file
is of format 2: a section for each platform, which is the very lock that the platform would have alone. So a
platform more or less changes nothing for the others, not even the digests of their images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from imagebuilder import lock as locks
from imagebuilder import platforms, textfile
from imagebuilder.errors import InputError, LockError
from imagebuilder.lock import Lock

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """The locks of one recipe by platform, at least one; sorted by platform."""

    sections: tuple[Lock, ...]

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(platforms.of(lock.architecture) for lock in self.sections)

    @property
    def checksum(self) -> str:
        """Hash of the content, as `Lock.checksum`: hex sha256. For a single platform it is its lock's."""
        return hashlib.sha256(dumps(self.plain).encode()).hexdigest()

    @property
    def plain(self) -> LockFile:
        """The same without what is known of layers: all that the locks mean."""
        return LockFile(sections=tuple(lock.knowing(()) for lock in self.sections))

    def section(self, platform: str) -> Lock | None:
        """Give one platform's lock; None where there is none."""
        return next((lock for lock in self.sections if platforms.of(lock.architecture) == platform), None)


def dumps(file: LockFile) -> str:
    """Write a lock file as text: of a single platform its lock alone."""
    if len(file.sections) == 1:
        return locks.dumps(file.sections[0])
    parts = []
    for name, lock in zip(file.platforms, file.sections, strict=True):
        # A line of a lock is never within a string: JSON writes line feeds as \n.
        lines = locks.dumps(lock).rstrip("\n").splitlines()
        parts.append(f"  {json.dumps(name)}: " + "\n  ".join(lines))
    head = f' "format": {FORMAT},\n "recipe": {json.dumps(file.sections[0].recipe)},\n "platforms": {{\n'
    return "{\n" + head + ",\n".join(parts) + "\n }\n}\n"


def loads(text: str, where: str) -> LockFile:
    """Read a lock file from text.

    Raises:
        InputError: it is not one, or was changed by hand so that it no longer is one.

    """
    return _loads(text, where)


# A command reads its lock whenever it has to know what the file says by then; mostly that is what it said.
@lru_cache(maxsize=2)
def _loads(text: str, where: str) -> LockFile:
    data = locks.parse(text, where)
    if not (isinstance(data, dict) and data.get("format") == FORMAT and "platforms" in data):
        return LockFile(sections=(locks.loads(text, where),))
    sections = data.get("platforms")
    if set(data) != {"format", "recipe", "platforms"} or not isinstance(sections, dict) or not sections:
        raise _wrong("is not a lock of several platforms", where)
    made = tuple(
        _section(name, section, f"{where}: platforms.{name}") for name, section in sorted(sections.items())
    )
    first = made[0]
    for lock in made:
        if (lock.recipe, lock.base, lock.python) != (data["recipe"], first.base, first.python):
            raise _wrong("its sections are of different recipes", where)
    return LockFile(sections=made)


def read(path: Path) -> LockFile:
    """Read a lock file.

    Raises:
        LockError: there is none.
        InputError: it is damaged.

    """
    return loads(locks.read_text(path), str(path))


def write(file: LockFile, path: Path) -> None:
    """Write a lock file in one step."""
    textfile.write(path, dumps(file))


def require_in_step(file: LockFile, inputs: Mapping[str, str], recipe: Path) -> None:
    """Refuse locks that were made from another recipe, or for other platforms.

    Args:
        file: the locks.
        inputs: of each platform of the recipe, what its lock has to be made from.
        recipe: where it is.

    Raises:
        LockError: with the command that mends it.

    """
    found, wanted = set(file.platforms), set(inputs)
    reason = ""
    if found == wanted:
        for name, lock in zip(file.platforms, file.sections, strict=True):
            locks.require_in_step(lock, inputs[name], recipe)
    elif wanted - found:
        reason = f"the lock has nothing for {', '.join(sorted(wanted - found))}"
    else:
        reason = f"the lock also has {', '.join(sorted(found - wanted))}, for which the recipe is not"
    if reason:
        raise LockError(reason, where=str(locks.path_for(recipe)), hint=f"run: imagebuilder lock {recipe}")


def _section(name: str, data: Any, where: str) -> Lock:
    lock = locks.loads(json.dumps(data), where)
    if platforms.of(lock.architecture) != name or name not in platforms.KNOWN:
        raise _wrong("is not a lock of that platform", where)
    return lock


def _wrong(message: str, where: str) -> InputError:
    return InputError(message, where=where, hint=locks.again(where))
