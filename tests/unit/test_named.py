"""What a word on the command line names; and that nobody else asks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import imagebuilder
from imagebuilder.store import Store
from imagebuilder.workflow import named

PACKAGE = Path(imagebuilder.__file__).parent


@pytest.mark.parametrize(
    ("word", "kind", "in_registry"),
    [
        ("x.yaml", "recipe", False),
        ("recipes/x.yml", "recipe", False),
        ("recipes/x.lock", "lock", True),
        ("report.json", "report", False),
        ("cuda12-torch", "image", False),
        ("sha256:0a", "image", False),
        ("registry.example/team/x:1", "image", True),
        ("", "image", False),
    ],
)
def test_a_word_names(word: str, kind: str, *, in_registry: bool) -> None:
    found = named(word)
    assert (found.kind, found.in_registry, found.text) == (kind, in_registry, word)
    assert found.is_recipe is (kind == "recipe")


def test_what_cannot_be_a_name_is_not_looked_for(tmp_path: Path) -> None:
    for word in ("../x", "registry.example/x:1", "x.yaml", "", "nothing"):
        assert named(word).images(Store(tmp_path)) == ()


def test_recipes_are_told_from_images_in_one_place() -> None:
    """Others use `yamlfile.RECIPE_ENDINGS`, for messages alone."""
    endings = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == ".yml"
    }
    # Completion offers files and decides nothing; it loads neither recipes nor the store, to be quick.
    assert endings == {"cli/completion.py", "core/yamlfile.py", "workflow/named.py"}
