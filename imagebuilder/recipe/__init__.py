"""The recipe: what a person writes. Parsed strictly, with every problem at once."""

from __future__ import annotations

from imagebuilder.recipe.model import Hosts, Recipe, RegistryImage, Ssh, is_name, schema
from imagebuilder.recipe.reading import load, with_pins

__all__ = ["Hosts", "Recipe", "RegistryImage", "Ssh", "is_name", "load", "schema", "with_pins"]
