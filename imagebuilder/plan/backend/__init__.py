"""The scripts that make the wheel of the user's package. Both engines run the same ones. Pure."""

from __future__ import annotations

from importlib import resources

NAMES = ("environment.sh", "wheel.py")
"""What the scripts are called in `/build`, where the backend runs."""


def script(name: str) -> str:
    """Return the text of one of the scripts."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
