"""The recipe: what a person writes. Parsed strictly, with every problem at once."""

from __future__ import annotations

from imagebuilder.recipe.model import Hosts, NotSecret, Recipe, RegistryImage, Ssh, is_name
from imagebuilder.recipe.places import Places
from imagebuilder.recipe.project import Copy
from imagebuilder.recipe.reading import checked, load, read, with_pins

__all__ = [
    "Copy",
    "Hosts",
    "NotSecret",
    "Places",
    "Recipe",
    "RegistryImage",
    "Ssh",
    "checked",
    "is_name",
    "load",
    "read",
    "with_pins",
]
