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


# Mistakes as people type them, chosen before the schema was asked: YAML that parses, no right recipe.
TYPED = {
    "a pin without indentation": ('  gcc: "14"', 'gcc: "14"'),
    "a float as a version": ('  torch: "2.10.0"', "  torch: 2.10"),
    "an integer as a version": ('  gcc: "14"', "  gcc: 14"),
    "a range as a version": ('  torch: "2.10.0"', '  torch: ">=2.10"'),
    "a word as a version": ('  torch: "2.10.0"', "  torch: latest"),
    "a package under pins": ('  gcc: "14"', '  torchvision: "0.25.0"'),
    "a misspelt pin": ('  nccl: "2.27.5"', '  ncll: "2.27.5"'),
    "pins as a list": ('  gcc: "14"', '  gcc: ["14"]'),
    "a misspelt key": ('pip: ["numpy"]', 'pips: ["numpy"]'),
    "a key of Docker": ('pip: ["numpy"]', "entrypoint: [train.py]"),
    "packages as a text": ('pip: ["numpy"]', "pip: numpy"),
    "a requirement with one equals sign": ('pip: ["numpy"]', 'pip: ["numpy=2.1"]'),
    "a repository as a requirement": ('pip: ["numpy"]', 'pip: ["git+https://example.org/x.git"]'),
    "a package twice": ('pip: ["numpy"]', 'pip: ["numpy", "numpy"]'),
    "another project's name": ('pip: ["numpy"]', 'pip: ["pytorch"]'),
    "a name with capitals": ("name: train", "name: Train"),
    "a name with a space": ("name: train", "name: my train"),
    "no python": ('python: "3.13"', ""),
    "python as a float": ('python: "3.13"', "python: 3.13"),
    "an image as a base": ("base: debian:trixie", "base: nvidia/cuda:12.8.1-base-ubuntu24.04"),
    "a release's number": ("base: debian:trixie", "base: debian:13"),
    "ssh as a boolean": ("ssh: {port: 22, user: root}", "ssh: true"),
    "a port as a text": ("ssh: {port: 22, user: root}", 'ssh: {port: "22"}'),
    "a port that root alone has": ("ssh: {port: 22, user: root}", "ssh: {port: 22, user: me}"),
    "a port out of range": ("ssh: {port: 22, user: root}", "ssh: {port: 222222}"),
    "variables as a list": ('pip: ["numpy"]', 'env: ["BATCH=32"]'),
    "a number as a variable": ('pip: ["numpy"]', "env: {BATCH: 32}"),
    "a password as a variable": ('pip: ["numpy"]', "env: {WANDB_API_KEY: abc}"),
    "a job's setting": ('pip: ["numpy"]', "env: {NCCL_DEBUG: INFO}"),
    "a machine's word for a platform": ('pip: ["numpy"]', "platforms: [x86_64]"),
    "a file to copy as a text": ('pip: ["numpy"]', "copy: [src]"),
    "a command as a text": ('pip: ["numpy"]', "command: torchrun train.py"),
    "a driver as a number": ('pip: ["numpy"]', "hosts: {driver: 570.86}"),
}


def test_the_schema_alone_refuses_most_of_what_people_mistype(tmp_path: Path) -> None:
    right = (
        'name: train\nbase: debian:trixie\npython: "3.13"\npins:\n  cuda: "12.8"\n  nccl: "2.27.5"\n'
        '  torch: "2.10.0"\n  gcc: "14"\nssh: {port: 22, user: root}\npip: ["numpy"]\n'
    )
    path, missed = tmp_path / "train.yaml", set()
    path.write_text(right)
    assert problems(schemas.recipe(), plain(path)) == []
    recipe.load(path, catalog.names())
    for title, (before, after) in TYPED.items():
        assert before in right
        path.write_text(right.replace(before, after))
        with pytest.raises(InputError):
            recipe.load(path, catalog.names())
        if not problems(schemas.recipe(), plain(path)):
            missed.add(title)
    # What a name means is in no pattern: these three only `check` sees.
    assert missed == {"another project's name", "a password as a variable", "a job's setting"}
