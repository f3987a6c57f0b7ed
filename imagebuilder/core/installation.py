"""How this program was installed, so that a message can name the command that adds an extra to it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# The name on the package index; the command and the module are `imagebuilder`.
DISTRIBUTION = "imagebuilder-dl"


def install(extra: str) -> str:
    """Return the command that installs this program again, with one of its extras.

    Args:
        extra: a key of pyproject.toml's `optional-dependencies`.

    """
    try:
        recorded = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        recorded = None
    pip = importlib.util.find_spec("pip") is not None
    return command(extra, recorded=recorded, prefix=Path(sys.prefix), python=sys.executable, pip=pip)


def command(extra: str, *, recorded: str | None, prefix: Path, python: str, pip: bool) -> str:
    """Write the command for one way of installing.

    Args:
        extra: the extra to add.
        recorded: the content of `direct_url.json` (PEP 610), which installers write for a checkout or a file.
        prefix: the environment's folder, in which `uv tool` and pipx leave a file of theirs.
        python: its interpreter.
        pip: whether pip is in the environment.

    """
    what = shlex.quote(_requirement(extra, recorded))
    if (prefix / "uv-receipt.toml").is_file():
        return f"uv tool install {what}"
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx install --force {what}"
    if {"archive-v0", "environments-v2"} & set(prefix.parts):
        return f"uvx --from {what} imagebuilder"
    editable = "-e " if _said(recorded).get("dir_info", {}).get("editable") else ""
    own = shlex.quote(python)
    installer = f"{own} -m pip install" if pip else f"uv pip install --python {own}"
    return f"{installer} {editable}{what}"


def _requirement(extra: str, recorded: str | None) -> str:
    said = _said(recorded)
    if not (url := said.get("url")):
        return f"{DISTRIBUTION}[{extra}]"
    if "dir_info" in said:
        return f"{unquote(urlsplit(url).path)}[{extra}]"
    return f"{DISTRIBUTION}[{extra}] @ {url}"


def _said(recorded: str | None) -> dict[str, Any]:
    try:
        data = json.loads(recorded or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
