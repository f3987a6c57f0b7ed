"""Write text files in one step, and find the files that come with the package."""

from __future__ import annotations

import secrets
from pathlib import Path

from imagebuilder.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def write(path: Path, text: str) -> None:
    """Write a file, and make its folder if it does not exist. Readers see the old content or the new one.

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


def resources(name: str) -> Path:
    """Find `recipes` or `dockerfiles` in the installed package, or in the checkout that it runs from.

    Raises:
        InputError: neither is there, so the installation is broken.

    """
    for folder in (_PACKAGE / "_share" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise InputError(f"the package's own `{name}` are missing", hint="install imagebuilder again")


def template(name: str) -> str:
    """Read a Jinja2 template of `dockerfiles/`."""
    return (resources("dockerfiles") / name).read_text(encoding="utf-8")
