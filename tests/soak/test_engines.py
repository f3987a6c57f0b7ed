"""Both engines on a shipped recipe, and on a component that they compile: the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

from imagebuilder.store import Store
from tests.integration.conftest import ROOT
from tests.integration.test_engines import Layout, build, require_same_files, shop, side
from tests.support import sameness

__all__ = ["shop"]
COMPILED = """
name: compiled
base: debian:trixie
python: "3.13"
pins:
  openmpi: "5.0.7"
  mpi4py: "4.1.1"
build: [mpi4py]
ssh: {port: 2222, user: trainer}
"""


def test_both_engines_give_the_same_files_of_a_shipped_recipe(
    shop: Store, store: Store, tmp_path: Path
) -> None:
    for path in (ROOT / "recipes").glob("cpu-mpi.*"):
        shutil.copy(path, tmp_path)
    require_same_files(tmp_path / "cpu-mpi.yaml", store, shop)


def test_a_component_that_buildkit_compiled_has_the_same_files(shop: Store, tmp_path: Path) -> None:
    """Here mpi4py, from its sdist: a stage of the Dockerfile, and a root of our own."""
    recipe = tmp_path / "compiled.yaml"
    recipe.write_text(COMPILED)
    build(recipe, shop)
    embedded = shop.image("compiled")
    assert embedded is not None
    told = build(recipe, shop, "--engine", "docker", "--output", tmp_path / "docker")
    docker = Layout(tmp_path / "docker", told)
    ours = side(embedded, shop)
    wrong, _ = sameness.differences(ours, docker.side)
    assert wrong == []
    (library,) = [path for path in ours.items if path.endswith(".so") and "/mpi4py/MPI." in path]
    assert ours.items[library] == docker.side.items[library]
    shutil.rmtree(docker.folder)
