"""One recipe by both engines: the same files, and what the docker engine promises (BuildKit alone: soak)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import process
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import labels
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

    def image(self) -> ImageRecord:
        found = self.store.image("cpu-mpi")
        assert found is not None
        return found


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


@pytest.fixture(scope="module")
def by_docker(shop: Shop) -> ImageRecord:
    shop.build("--engine", "docker")
    return shop.image()


def side(image: ImageRecord, store: Store) -> Side:
    return Side(blobs=[store.blob(layer.record.digest) for layer in image.layers])


def test_both_engines_give_the_same_files(
    store: Store, shop: Shop, embedded: ImageRecord, by_docker: ImageRecord
) -> None:
    wrong, _ = sameness.differences(side(embedded, store), side(by_docker, shop.store), pure=False)
    assert wrong == []


def test_every_layer_above_the_system_is_the_same_bit_for_bit(
    embedded: ImageRecord, by_docker: ImageRecord
) -> None:
    ours, theirs = ([layer.record for layer in image.layers] for image in (embedded, by_docker))
    # BuildKit's system is one layer, and ours is many.
    assert ours[1 - len(theirs) :] == theirs[1:]
    assert len(ours) > len(theirs) > 1
    assert theirs[0] not in ours


def test_the_image_says_which_engine_made_it(shop: Shop, store: Store, by_docker: ImageRecord) -> None:
    found = dict(labels(by_docker, shop.store))
    assert found.pop("org.imagebuilder.engine") == "docker"
    embedded = store.image("cpu-mpi")
    assert embedded is not None
    assert found == labels(embedded, store)


def test_a_second_build_asks_buildkit_for_nothing(shop: Shop, by_docker: ImageRecord) -> None:
    again = shop.build("--engine", "docker")
    assert (again["layers_made"], again["digest"]) == (0, by_docker.manifest)
