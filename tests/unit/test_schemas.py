"""The JSON Schemas that editors use: right files pass, and most mistakes are marked while one types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from imagebuilder import catalog, recipe
from imagebuilder.errors import InputError
from imagebuilder.host.site import detect
from imagebuilder.workflow import schemas

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "recipes"


def problems(schema: dict[str, Any], document: object) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def plain(path: Path) -> object:
    """Return what an editor sees of a file; None if it is not YAML, or not a mapping."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None


BAD = {
    path.stem: document
    for path in sorted(CASES.glob("*.yaml"))
    if "bomb" not in path.stem and (document := plain(path))
}


@pytest.mark.parametrize(
    "path", [*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "examples").rglob("recipes/*.yaml")], ids=str
)
def test_a_right_recipe_passes(path: Path) -> None:
    assert recipe.load(path, catalog.names())
    assert problems(schemas.recipe(), plain(path)) == []


def test_most_mistakes_are_marked_in_the_editor() -> None:
    # The others only the reader can see: what YAML hides (aliases, a key given twice), or what needs a rule
    # over several keys.
    missed = {name for name, document in BAD.items() if not problems(schemas.recipe(), document)}
    assert len(BAD) > 50
    assert len(missed) / len(BAD) < 0.2, missed


def test_every_key_and_every_pin_has_a_description() -> None:
    schema = schemas.recipe()
    fields = recipe.Recipe.model_fields.items()
    assert set(schema["properties"]) == {info.alias or name for name, info in fields}
    assert schema["additionalProperties"] is False
    assert all("description" in described for described in schema["properties"].values())
    pins = schema["properties"]["pins"]["properties"]
    assert set(pins) == catalog.names() - {"python"}
    assert all(described["description"] and described["pattern"] for described in pins.values())
    json.dumps(schema)


SITE: dict[str, Any] = {
    "proxies": {"http": "http://proxy.example:3128", "no_proxy": "localhost"},
    "index": "https://index.example/simple",
    "apt": {"options": {"Acquire::Retries": "5"}},
    "registries": {"docker.io": {"mirror": "registry.example:5000/hub"}},
    "tools": {"where": "auto"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"indx": "https://index.example"},
        {"index": "index.example"},
        {"no_index": "yes"},
        {"tools": {"where": "here"}},
        {"apt": {"options": {"APT::Get": "x"}}},
        {"registries": {"lab.example": {"plain_http": "true"}}},
        {"registries": {"lab.example": {"mirror": "https://x"}}},
        {"index_strategy": "best"},
    ],
    ids=str,
)
def test_a_site_file_s_mistakes_are_marked(change: dict[str, Any], tmp_path: Path) -> None:
    schema = schemas.site_file()
    assert problems(schema, SITE) == []
    assert problems(schema, SITE | change)
    # The reader refuses what the editor marks, and accepts what it accepts.
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(SITE))
    assert detect(file).index == SITE["index"]
    file.write_text(yaml.safe_dump(SITE | change))
    with pytest.raises(InputError):
        detect(file)
