"""Recipes and templates: at the top of the repository, and also in the wheel."""

from __future__ import annotations

from pathlib import Path

from imagebuilder.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Find `recipes` or `dockerfiles` in the installed package, or in the checkout that it runs from.

    Raises:
        InputError: neither is there, so the installation is broken.

    """
    for place in (_PACKAGE / "_share" / name, _PACKAGE.parent / name):
        if place.is_dir():
            return place
    raise InputError(f"the package's own `{name}` are missing", hint="install imagebuilder again")


def template(name: str) -> str:
    """Read a Jinja2 template of `dockerfiles/`."""
    return (folder("dockerfiles") / name).read_text(encoding="utf-8")
