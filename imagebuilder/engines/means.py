"""What a build with Docker can be asked to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Choice = Literal["auto", "registry", "bootstrap"]
CHOICES: tuple[Choice, ...] = ("auto", "registry", "bootstrap")


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a build with Docker was asked to use: a builder's name, and where the base comes from."""

    builder: str = ""
    base: Choice = "auto"
