"""A component that both engines compile: the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.test_engines import Layout, Shop, build, shop, side
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


def test_a_component_that_buildkit_compiled_has_the_same_files(shop: Shop, tmp_path: Path) -> None:
    """Here mpi4py, from its sdist: a stage of the Dockerfile, and a root of our own."""
    recipe = tmp_path / "compiled.yaml"
    recipe.write_text(COMPILED)
    build(recipe, shop.store)
    embedded = shop.store.image("compiled")
    assert embedded is not None
    told = build(recipe, shop.store, "--engine", "docker", "--output", tmp_path / "docker")
    docker = Layout(tmp_path / "docker", told)
    ours = side(embedded, shop.store)
    wrong, _ = sameness.differences(ours, docker.side)
    assert wrong == []
    (library,) = [path for path in ours.items if path.endswith(".so") and "/mpi4py/MPI." in path]
    assert ours.items[library] == docker.side.items[library]
    shutil.rmtree(docker.folder)
