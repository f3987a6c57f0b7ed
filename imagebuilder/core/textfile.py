"""Write text files in one step, so that a reader sees the old content or the new one."""

from __future__ import annotations

import secrets
from pathlib import Path

from imagebuilder.errors import InputError


def write(path: Path, text: str) -> None:
    """Write a file, and make its folder if it does not exist.

    Raises:
        InputError: the file cannot be written; an older one is unchanged.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with draft.open("x", encoding="utf-8") as file:
                file.write(text)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(path), hint="is the folder writable?"
        ) from error
