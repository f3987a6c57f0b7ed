"""From what a person typed to an image of the store: only one that is what its recipe says now."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.errors import ConflictError, LockError
from imagebuilder.image import oci
from imagebuilder.store import ImageRecord, LayerRecord, Store
from imagebuilder.workflow import built_image, check_recipe, last_image, read_plan, require_in_step
from tests.unit.samples import RECIPES


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for path in RECIPES.glob("cpu-mpi.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "cpu-mpi.yaml"


@pytest.fixture
def image(recipe: Path, store: Store) -> ImageRecord:
    """The recipe's image, of layers that hold nothing."""
    _, plan = read_plan(recipe)
    records = []
    for layer in plan.layers:
        digest, size = store.put_bytes(layer.key.encode())
        record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")
        store.put_layer(layer.key, record)
        records.append(record)
    return oci.write_image(plan, records, store)


def test_an_image_that_was_never_built(recipe: Path, store: Store) -> None:
    for find in (built_image, last_image, require_in_step):
        with pytest.raises(LockError) as caught:
            find(str(recipe), store)
        assert str(caught.value) == (
            f"{recipe}: its image is not in the store\n"
            f"  -> run: imagebuilder build {recipe} "
            "(an image of `build --engine docker` is in Docker, not in the store: "
            "pass the NAME:TAG that the build printed to `smoke-test`, and push it with `docker push`)"
        )


def test_an_image_in_step_with_its_recipe(recipe: Path, store: Store, image: ImageRecord) -> None:
    assert built_image(str(recipe), store) == image
    assert built_image("cpu-mpi", store) == image
    assert built_image("other", store) is None
    assert built_image("localhost:5000/x:y", store) is None


@pytest.mark.parametrize("line", ["tags: [latest]", "about: {vendor: us}", 'env: {"A": "b"}'])
def test_another_state_of_the_recipe(recipe: Path, store: Store, image: ImageRecord, line: str) -> None:
    text = recipe.read_text()
    recipe.write_text(
        "\n".join(row for row in text.split("\n") if not row.startswith("about:")) + f"{line}\n"
    )
    with pytest.raises(LockError) as caught:
        require_in_step(str(recipe), store)
    assert "imagebuilder" in str(caught.value)
    assert last_image(str(recipe), store) == image


def test_a_layer_that_would_be_another_now(recipe: Path, store: Store, image: ImageRecord) -> None:
    _, plan = read_plan(recipe)
    digest, size = store.put_bytes(b"made by a newer version")
    record = replace(image.layers[-1].record, digest=digest, size=size)
    store.put_layer(plan.layers[-1].key, record)
    with pytest.raises(LockError, match="does not match its recipe any more"):
        require_in_step(str(recipe), store)


@pytest.mark.usefixtures("image")
def test_a_layer_whose_record_is_gone_is_no_reason(recipe: Path, store: Store) -> None:
    for key in store.layer_keys():
        store.layer_path(key).unlink()
    require_in_step(str(recipe), store)


def test_what_the_catalog_knows_to_be_wrong_is_told_without_a_lock_and_a_network(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = 'name: x\nbase: debian:trixie\npython: "3.13"\npins: {cuda: "12.8"}\nhosts: {driver: "%s"}\n'
    path.write_text(text % "570.26")
    check_recipe(path)
    path.write_text(text % "550.54")
    with pytest.raises(ConflictError, match=r"x\.yaml:5: hosts: the hosts' driver \"550\.54\" clashes"):
        check_recipe(path)
