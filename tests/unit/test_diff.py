"""Comparing images, as far as both sides are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder import plan
from imagebuilder.catalog import select
from imagebuilder.image import diff
from imagebuilder.image.diff import ChangedValue, ComparedLayer, Side
from imagebuilder.plan import OsPart
from imagebuilder.store import EMPTY_LAYER, LayerRecord, Store
from tests.unit import samples


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def part(identity: str, size: int = 100, *, measured: bool = True) -> ComparedLayer:
    return ComparedLayer(
        identity=identity, title=f"layer {identity}", component="torch", size=size, measured=measured
    )


def side(*parts: ComparedLayer, **pins: str) -> Side:
    return Side(name="x", pins=pins, packages=None, layers=parts)


def test_the_same_image_differs_in_nothing() -> None:
    found = diff.compare(side(part("a"), nccl="2.27.5"), side(part("a"), nccl="2.27.5"))
    assert found.same
    assert (found.push_bytes, found.shared_bytes) == (0, 100)


def test_only_new_layers_would_be_pushed() -> None:
    before = side(part("base", 1000), part("old", 10), nccl="2.27.5", cudnn="9.10.2")
    after = side(part("base", 1000), part("new", 20), nccl="2.28.9", gcc="14.2.0")
    found = diff.compare(before, after)
    assert found.gone == (part("old", 10),)
    assert found.new == (part("new", 20),)
    assert (found.push_bytes, found.shared_bytes, found.measured) == (20, 1000, True)
    assert found.pins == (
        ChangedValue(name="cudnn", before="9.10.2", after=""),
        ChangedValue(name="gcc", before="", after="14.2.0"),
        ChangedValue(name="nccl", before="2.27.5", after="2.28.9"),
    )


def test_a_layer_that_was_never_made_makes_the_figure_an_estimate() -> None:
    assert not diff.compare(side(), side(part("key:1", measured=False))).measured


def test_locks_alone_say_nothing_of_layers() -> None:
    found = diff.compare(diff.of_lock("a", samples.lock()), side(part("a")))
    assert (found.gone, found.new, found.packages) == (None, None, None)


def test_packages_differ_by_version_and_by_bytes() -> None:
    other = samples.wheel("torch", "2.10.0", component="torch").model_copy(update={"sha256": "e" * 64})
    changed = samples.lock(wheels=(samples.wheel("numpy"), other), debs=())
    found = diff.compare(diff.of_lock("a", samples.lock()), diff.of_lock("b", changed))
    assert found.packages is not None
    assert [change.name for change in found.packages] == ["deb openmpi-bin", "deb python3", "wheel torch"]
    assert found.packages[2].after == "2.10.0 eeeeeeeeeeee"


def test_a_planned_layer_and_the_same_one_built_are_one(store: Store) -> None:
    lock = samples.lock()
    planned = plan.plan(select(samples.recipe()), lock, ())
    before = diff.of_plan("a", lock, planned, store)
    assert before.layers is not None
    assert not any(layer.measured for layer in before.layers)
    digest, size = store.put_bytes(b"layer")
    record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")
    store.put_layer(planned.layers[0].key, record)
    after = diff.of_plan("b", lock, planned, store)
    assert after.layers is not None
    assert (after.layers[0].identity, after.layers[0].size, after.layers[0].measured) == (digest, 5, True)
    assert diff.compare(after, diff.of_plan("c", lock, planned, store)).same


def test_a_part_of_a_system_is_expected_to_be_what_its_packages_gave_elsewhere(store: Store) -> None:
    lock = samples.lock(debs=(samples.deb("bash"), samples.deb("openssh"), samples.deb("htop")))
    made = plan.plan(select(samples.recipe()), lock, ())
    for number, layer in enumerate(made.layers):
        digest, size = store.put_bytes(f"layer {number}".encode())
        record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")
        store.put_layer(layer.key, record)
        if isinstance(layer, OsPart):
            store.put_layer(layer.likely, record)
    more = samples.lock(debs=(*lock.debs, samples.deb("tree")))
    sides = (
        diff.of_plan("a", lock, made, store),
        diff.of_plan("b", more, plan.plan(select(samples.recipe()), more, ()), store),
    )
    found = diff.compare(*sides)
    assert found.new is not None
    # The other packages, and the state; not the base, nor ssh.
    assert [part.title for part in found.new] == [
        "debian trixie: other packages, 2 packages",
        "debian trixie: settings and state",
    ]


def test_a_planned_layer_that_came_out_empty_is_not_counted(store: Store) -> None:
    lock = samples.lock()
    planned = plan.plan(select(samples.recipe()), lock, ())
    before = diff.of_plan("a", lock, planned, store).layers
    store.put_layer(planned.layers[-2].key, EMPTY_LAYER)
    after = diff.of_plan("b", lock, planned, store).layers
    assert before is not None
    assert after == tuple(part for part in before if part.title != planned.layers[-2].title)
    assert len(after) == len(before) - 1
