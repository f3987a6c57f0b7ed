"""One recipe by both engines: the same files and settings (a component that is compiled: soak)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core import process
from imagebuilder.store import ImageRecord, Store
from tests.support import recipes, sameness
from tests.support.sameness import Side

PROGRAM = Path(sys.executable).parent / "imagebuilder"
_SECONDS = 3000


def build(recipe: Path, store: Store, *options: str | Path) -> dict[str, Any]:
    argv: tuple[str | Path, ...] = (PROGRAM, "build", recipe, "--store", store.root, "--json")
    result = process.run([*argv, "--progress", "lines", *options], timeout=_SECONDS)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def shop(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the downloads of the session's, so that nothing of its gigabytes stays."""
    folder = tmp_path_factory.mktemp("engines")
    downloads = store.root / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (folder / "downloads").symlink_to(downloads)
    yield Store(folder)
    shutil.rmtree(folder)
    # The SDK's own time limit is too short for gigabytes.
    process.run(["docker", "buildx", "prune", "--force"], timeout=_SECONDS)


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


def side(image: ImageRecord, store: Store) -> Side:
    return Side(blobs=[store.blob(layer.record.digest) for layer in image.layers])


def test_both_engines_give_the_same_files(store: Store, shop: Store, tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(recipes.SMALL)
    require_same_files(recipe, store, shop)


def require_same_files(recipe: Path, store: Store, shop: Store) -> None:
    """Build a recipe by both engines, the embedded one into the session's store, and compare them."""
    build(recipe, store)
    embedded = store.image(recipe.stem)
    assert embedded is not None
    place = shop.root / recipe.stem
    docker = Layout(place, build(recipe, shop, "--engine", "docker", "--output", place))
    wrong, used = sameness.differences(side(embedded, store), docker.side)
    assert wrong == []
    # What nothing needs any more is no longer allowed.
    assert used == {rule.paths for rule in sameness.ALLOWED}
    config = docker.json(docker.manifest["config"]["digest"])["config"]
    ours = json.loads(store.blob(embedded.config).read_bytes())["config"]
    assert config["Labels"].pop("org.imagebuilder.engine") == "docker"
    for key in ("Entrypoint", "User", "WorkingDir", "ExposedPorts", "Labels"):
        assert config[key] == ours[key]
    assert sorted(config["Env"]) == sorted(ours["Env"])
    assert not config.get("Cmd")
    shutil.rmtree(place)
