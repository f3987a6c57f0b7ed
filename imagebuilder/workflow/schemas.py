"""JSON Schemas of the files that people write, for editors: they refuse most of what the reader refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagebuilder import catalog
from imagebuilder.debian import suites
from imagebuilder.host import site
from imagebuilder.recipe import Recipe
from imagebuilder.recipe.project import MOST_COPIES
from imagebuilder.recipe.reading import LABEL, RESERVED_ENV

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LISTS = ("apt", "pip", "requirements", "override", "build", "tags", "platforms", "copy")


def recipe(folder: Path | None = None) -> dict[str, Any]:
    """Describe a recipe. Its pins are those of the catalog, each with the component's summary.

    Args:
        folder: catalog files beside the recipe, whose components are listed too; or None.

    Raises:
        InputError: one of them is wrong.

    """
    described = Recipe.model_json_schema()
    keys = described["properties"]
    known = catalog.own.all_of(folder) if folder else catalog.load()
    components = {name: entry for name, entry in known.items() if name != "python"}
    version = keys["pins"]["additionalProperties"]
    keys["pins"] |= {
        "additionalProperties": False,
        "properties": {name: {**version, "description": entry.summary} for name, entry in components.items()},
    }
    keys["providers"]["propertyNames"] = {"enum": list(components)}
    for key in ("override", "build"):
        keys[key]["items"]["enum"] = list(components)
    keys["env"]["propertyNames"] = {
        "pattern": rf"^(?!(?:{'|'.join(sorted(RESERVED_ENV))})$)[A-Za-z_][A-Za-z0-9_]*$"
    }
    keys["labels"]["propertyNames"] = {"pattern": f"^{LABEL.pattern}$"}
    bases = [f"{name}:{suite}" for name, facts in suites.known().items() for suite in facts.suites]
    keys["base"]["oneOf"] = [
        {"enum": bases} if kind.get("type") == "string" else kind for kind in keys["base"]["oneOf"]
    ]
    for key in _LISTS:
        keys[key]["uniqueItems"] = True
    keys["copy"]["maxItems"] = MOST_COPIES
    return _titled("recipe", described)


def site_file() -> dict[str, Any]:
    """Describe a site file."""
    return _titled("site", site.schema())


def component() -> dict[str, Any]:
    """Describe a component's file."""
    return _titled("component", catalog.Component.model_json_schema())


def text(described: dict[str, Any]) -> str:
    """Return a schema as the text of a file."""
    return json.dumps(described, indent=2) + "\n"


def _titled(name: str, described: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": _DIALECT,
        "$id": f"urn:imagebuilder:{name}",
        **described,
        "title": f"imagebuilder {name}",
    }
