"""The lock file: the locks of one recipe, a section for each of its platforms.

The file has the same shape for one platform or several: `format`, `recipe`, and `platforms` with a section
for each. Sections are independent: adding or removing a platform changes nothing for the others, not even the
digests of their images.

It is JSON with one package a line: fast to parse, and a changed package is one line of a diff.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from imagebuilder.core import files, jsontext, platforms
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import ImagebuilderError, InputError, LockError, Problem
from imagebuilder.lock import model as locks
from imagebuilder.lock import rules
from imagebuilder.lock.model import Lock

FORMAT = 1
# Fields of a lock that are not in its section: the file has the recipe, and the section's key the platform.
_ABOVE = frozenset({"recipe", "architecture"})
_LIMIT = 16_000_000
# A package is about ten values: this is enough for ten thousand packages.
_MOST_VALUES = 100_000
_SHOWN = 20

Platform = Annotated[str, Field(pattern=r"^linux/[a-z0-9]+$", max_length=50)]


class _Document(Strict):
    """A lock file as JSON; its sections are not parsed yet."""

    format: Literal[1]
    recipe: locks.Word
    platforms: Annotated[dict[Platform, dict[str, Any]], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """The locks of one recipe by platform, at least one; sorted by platform."""

    sections: tuple[Lock, ...]

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(platforms.of(lock.architecture) for lock in self.sections)

    @property
    def checksum(self) -> str:
        """Hex sha256 of the platforms and their locks' checksums; for one platform, its lock's checksum."""
        if len(self.sections) == 1:
            return self.sections[0].checksum
        lines = (f"{platforms.of(lock.architecture)} {lock.checksum}\n" for lock in self.sections)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def plain(self) -> LockFile:
        """The same locks without the digests of known layers."""
        return LockFile(sections=tuple(lock.knowing(()) for lock in self.sections))

    def section(self, platform: str) -> Lock | None:
        """Return one platform's lock; None if the file has no section for it."""
        return next((lock for lock in self.sections if platforms.of(lock.architecture) == platform), None)


def dumps(file: LockFile) -> str:
    """Return a lock file as text: one package a line, with a newline at the end."""
    sections = []
    for name, lock in zip(file.platforms, file.sections, strict=True):
        # Every line feed here is between values: JSON writes those in a string as \n.
        text = locks.braced(locks.rows(lock, leave_out=_ABOVE)).replace("\n", "\n  ")
        sections.append(f"  {json.dumps(name)}: {text}")
    written = [
        f' "format": {FORMAT}',
        f' "recipe": {json.dumps(file.sections[0].recipe)}',
        ' "platforms": {\n' + ",\n".join(sections) + "\n }",
    ]
    return f"{locks.braced(written)}\n"


def loads(text: str, where: str) -> LockFile:
    """Read a lock file from text.

    Raises:
        InputError: it is not a lock file, or a field of it is wrong.
        LockError: it contradicts itself, see `lock.rules`; or a newer imagebuilder wrote it.

    """
    return _loads(text, where)


# A command reads its lock file several times, in case another process changed it. Mostly none did.
@lru_cache(maxsize=2)
def _loads(text: str, where: str) -> LockFile:
    document = _document(text, where)
    return LockFile(
        sections=tuple(
            _section(document.recipe, name, section, f"{where}: platforms.{name}")
            for name, section in sorted(document.platforms.items())
        )
    )


def read(path: Path) -> LockFile:
    """Read a lock file.

    Raises:
        LockError: it does not exist, or it contradicts itself.
        InputError: it is damaged.

    """
    return loads(_text(path), str(path))


def write(file: LockFile, path: Path) -> None:
    """Write a lock file in one step."""
    files.write(path, dumps(file))


def require_in_step(file: LockFile, inputs: Mapping[str, str], recipe: Path) -> None:
    """Refuse locks that were made from another recipe, or for other platforms.

    Args:
        file: the locks.
        inputs: the checksum that the lock must have, for each platform of the recipe.
        recipe: the recipe's file.

    Raises:
        LockError: with the command that writes the lock again.

    """
    locked, wanted = set(file.platforms), set(inputs)
    reason = ""
    if locked == wanted:
        for name, lock in zip(file.platforms, file.sections, strict=True):
            locks.require_in_step(lock, inputs[name], recipe)
    elif wanted - locked:
        reason = f"the lock has nothing for {', '.join(sorted(wanted - locked))}"
    else:
        reason = f"the lock also has {', '.join(sorted(locked - wanted))}, which the recipe does not list"
    if reason:
        raise LockError(reason, where=str(locks.path_for(recipe)), hint=f"run: imagebuilder lock {recipe}")


def _document(text: str, where: str) -> _Document:
    try:
        data = jsontext.loads(text, limit=_LIMIT, most=_MOST_VALUES, unique=True)
    except ValueError as error:
        raise InputError(f"is not a lock: it {error}", where=where, hint=locks.again(where)) from None
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise LockError(
            f"was written by a newer imagebuilder (format {data['format']})",
            where=where,
            hint=f"upgrade imagebuilder, or {locks.again(where)}",
        )
    try:
        return _Document.model_validate(data)
    except ValidationError as error:
        raise _refused(error, where) from None


def _section(recipe: str, platform: str, section: Mapping[str, Any], where: str) -> Lock:
    if above := sorted(_ABOVE & set(section)):
        message, hint = "is not a key of a section", locks.again(where)
        raise InputError.of([Problem(message=message, where=f"{where}: {key}", hint=hint) for key in above])
    fields = {**section, "recipe": recipe, "architecture": platforms.architecture(platform)}
    try:
        # As JSON: in a strict model only JSON may give a list for a tuple.
        lock = Lock.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise _refused(error, where) from None
    rules.require(lock, where)
    return lock


def _refused(error: ValidationError, where: str) -> ImagebuilderError:
    """Report the first problems that the model found, each with its key."""
    return InputError.of(
        [
            Problem(
                message=item["msg"],
                where=": ".join(filter(None, (where, printable(".".join(map(str, item["loc"])))))),
                hint=locks.again(where),
            )
            for item in error.errors()[:_SHOWN]
        ]
    )


def _text(path: Path) -> str:
    hint = locks.again(str(path))
    try:
        # Read up to the limit instead of asking for the size: a device has no size, and may never end.
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
        if len(raw) > _LIMIT:
            raise InputError("is far too large for a lock", where=str(path), hint=hint)
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise LockError("there is no lock", where=str(path), hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint=hint) from None
