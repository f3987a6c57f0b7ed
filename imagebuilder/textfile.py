"""Text files that people keep: written in one step, so that a reader sees the old one or the new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from imagebuilder.errors import InputError


def write(path: Path, text: str) -> None:
    """Write a file, and the folder that it goes to where there is none yet.

    Raises:
        InputError: the place cannot be written; what was there before still is.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(path), hint="is the folder writable?"
        ) from error
