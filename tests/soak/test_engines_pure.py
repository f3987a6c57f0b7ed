"""The whole Dockerfile by BuildKit alone, from archive and index: the same files as the embedded engine's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuilder.store import ImageRecord, Store
from tests.integration.test_engines import Shop, build, embedded, shop, side
from tests.support import sameness
from tests.support.sameness import Side

__all__ = ["embedded", "shop"]
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


class Layout:
    """An image that was written as an OCI layout: what its blobs say."""

    def __init__(self, folder: Path, told: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = self.json(told["digest"])
        self.side = Side(blobs=[self.blob(layer["digest"]) for layer in self.manifest["layers"]])

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def json(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(digest).read_bytes())
        return found


def test_buildkit_alone_gives_the_same_files(
    store: Store, shop: Shop, embedded: ImageRecord, tmp_path: Path
) -> None:
    pure = Layout(
        tmp_path / "pure", shop.build("--engine", "docker", "--pure", "--output", tmp_path / "pure")
    )
    wrong, used = sameness.differences(side(embedded, store), pure.side, pure=True)
    assert wrong == []
    # What nothing needs any more is no longer allowed.
    assert used == {rule.paths for rule in sameness.ALLOWED}
    config = pure.json(pure.manifest["config"]["digest"])["config"]
    ours = json.loads(store.blob(embedded.config).read_bytes())["config"]
    assert config["Labels"].pop("org.imagebuilder.engine") == "docker"
    for key in ("Entrypoint", "User", "WorkingDir", "ExposedPorts", "Labels"):
        assert config[key] == ours[key]
    assert sorted(config["Env"]) == sorted(ours["Env"])
    assert not config.get("Cmd")
    shutil.rmtree(pure.folder)


def test_a_component_that_buildkit_compiled_has_the_same_files(shop: Shop, tmp_path: Path) -> None:
    """Here mpi4py, from its sdist: a stage of the Dockerfile, and a root of our own."""
    recipe = tmp_path / "compiled.yaml"
    recipe.write_text(COMPILED)
    build(recipe, shop.store)
    embedded = shop.store.image("compiled")
    assert embedded is not None
    told = build(recipe, shop.store, "--engine", "docker", "--pure", "--output", tmp_path / "pure")
    pure = Layout(tmp_path / "pure", told)
    ours = side(embedded, shop.store)
    wrong, _ = sameness.differences(ours, pure.side, pure=True)
    assert wrong == []
    (library,) = [path for path in ours.items if path.endswith(".so") and "/mpi4py/MPI." in path]
    assert ours.items[library] == pure.side.items[library]
    shutil.rmtree(pure.folder)
