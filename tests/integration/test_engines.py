"""One recipe by both engines: the same files and settings (a component that is compiled: soak)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core import process
from imagebuilder.store import ImageRecord, Store
from tests.support import sameness
from tests.support.sameness import Side

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).parent / "imagebuilder"
_SECONDS = 3000


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A recipe and its lock in a folder of their own, and a store with the downloads of the session's."""

    recipe: Path
    store: Store

    def build(self, *options: str | Path) -> dict[str, Any]:
        return build(self.recipe, self.store, *options)


def build(recipe: Path, store: Store, *options: str | Path) -> dict[str, Any]:
    argv: tuple[str | Path, ...] = (PROGRAM, "build", recipe, "--store", store.root, "--json")
    result = process.run([*argv, "--progress", "lines", *options], timeout=_SECONDS)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def shop(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Keep the session's own image of the recipe as it is, and leave nothing of this one's gigabytes."""
    folder = tmp_path_factory.mktemp("engines")
    for path in (ROOT / "recipes").glob("cpu-mpi.*"):
        shutil.copy(path, folder)
    downloads = store.root / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (folder / "store").mkdir()
    (folder / "store" / "downloads").symlink_to(downloads)
    yield Shop(recipe=folder / "cpu-mpi.yaml", store=Store(folder / "store"))
    shutil.rmtree(folder)
    # The SDK's own time limit is too short for gigabytes.
    process.run(["docker", "buildx", "prune", "--force"], timeout=_SECONDS)


@pytest.fixture(scope="module")
def embedded(store: Store, shop: Shop) -> ImageRecord:
    """The embedded engine's image, of layers that the session's store has anyway."""
    build(shop.recipe, store)
    found = store.image("cpu-mpi")
    assert found is not None
    return found


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


def test_both_engines_give_the_same_files(
    store: Store, shop: Shop, embedded: ImageRecord, tmp_path: Path
) -> None:
    place = tmp_path / "docker"
    docker = Layout(place, shop.build("--engine", "docker", "--output", place))
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
