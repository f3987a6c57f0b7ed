"""The embedded engine on an image of wheels alone: what rots in the store is found, and mended."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.errors import BuildError, FetchError, StoreError
from imagebuilder.store import Store
from tests.support import wheelimage
from tests.support.wheels import locked, make_wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheelimage.make_wheels(tmp_path / "wheels", count=3, size=2000)
    return tmp_path / "wheels"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    rewrite(path, bytes(data))


def truncate(path: Path) -> None:
    rewrite(path, path.read_bytes()[:-10])


def downloads(store: Store) -> list[Path]:
    return sorted((store.root / "downloads" / "sha256").iterdir())


def forget_layers(store: Store) -> None:
    for key in store.layer_keys():
        store.layer_path(key).unlink()


def test_a_build_and_a_second_one(wheels: Path, store: Store) -> None:
    first = wheelimage.build(wheels, store)
    assert (first.made, first.reused) == (4, 0)
    assert first.fetched == sum(path.stat().st_size for path in wheels.iterdir())
    again = wheelimage.build(wheels, store)
    assert (again.made, again.reused, again.fetched) == (0, 4, 0)
    assert again.image == first.image


@pytest.mark.parametrize("damage", [flip, truncate])
def test_a_damaged_download_is_named_and_fetched_again(
    damage: Callable[[Path], None], wheels: Path, store: Store
) -> None:
    sound = wheelimage.build(wheels, store)
    forget_layers(store)
    victims = downloads(store)[:2]
    for path in victims:
        damage(path)
    log = io.StringIO()
    again = wheelimage.build(wheels, store, log)
    assert again.image == sound.image
    assert again.fetched == sum(path.stat().st_size for path in victims)
    # One that is shorter counts as absent from the start.
    assert log.getvalue().count("is damaged: it is fetched again") == (2 if damage is flip else 0)
    for path in victims:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_download_swapped_for_another_is_fetched_again(wheels: Path, store: Store, tmp_path: Path) -> None:
    sound = wheelimage.build(wheels, store)
    forget_layers(store)
    victim = downloads(store)[0]
    # A wheel in order, of the same name and length, but another one.
    name, version = next(
        path.name.split("-")[:2] for path in wheels.iterdir() if locked(path).sha256 == victim.name
    )
    data = b"\0" * 2000
    other = make_wheel(tmp_path, {f"{name}/data.bin": data}, name=name, version=version).read_bytes()
    rewrite(victim, other.ljust(victim.stat().st_size, b"\0"))
    assert wheelimage.build(wheels, store).image == sound.image


def test_what_the_index_holds_in_another_form_is_refused(wheels: Path, store: Store) -> None:
    """The damage is where the bytes come from: fetching again does not help, and nothing is made of it."""
    image, lock = wheelimage.plan(tuple(wheels.iterdir()))
    flip(min(wheels.iterdir()))
    with pytest.raises(FetchError, match=r"part0-1\.0-py3"):
        wheelimage.build_plan(image, lock, wheels, store)
    assert store.image("wheels") is None


def test_a_rotten_wheel_of_a_layer_that_is_there_does_not_stop_a_build(wheels: Path, store: Store) -> None:
    sound = wheelimage.build(wheels, store)
    rotten, wanted = downloads(store)[:2]
    image, _ = wheelimage.plan(tuple(wheels.iterdir()))
    gone = next(layer for layer in image.layers if wanted.name in layer.key or wanted.name in str(layer))
    store.layer_path(gone.key).unlink()
    rewrite(rotten, b"\0" * rotten.stat().st_size)
    log = io.StringIO()
    assert wheelimage.build(wheels, store, log).image == sound.image
    assert "is damaged: it is removed" in log.getvalue()
    assert not rotten.exists()


def test_wheels_that_clash_are_refused_all_the_same(wheels: Path, store: Store) -> None:
    make_wheel(wheels, {"part0/data.bin": b"other"}, name="thief")
    with pytest.raises(BuildError, match=r"part0/data\.bin"):
        wheelimage.build(wheels, store)


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_a_torn_blob_is_made_again(damage: Callable[[Path], None], wheels: Path, store: Store) -> None:
    sound = wheelimage.build(wheels, store)
    blob = store.blob(sound.image.layers[0].record.digest)
    damage(blob)
    again = wheelimage.build(wheels, store)
    assert (again.made, again.fetched, again.image) == (1, 0, sound.image)
    assert store.has_blob(sound.image.layers[0].record.digest, sound.image.layers[0].record.size)


@pytest.mark.parametrize("text", ["", "{", '{"digest": "sha256:0"}', "null", "\0\0"])
def test_a_damaged_record_of_a_layer_is_made_again(text: str, wheels: Path, store: Store) -> None:
    sound = wheelimage.build(wheels, store)
    store.layer_path(store.layer_keys()[0]).write_text(text)
    again = wheelimage.build(wheels, store)
    assert (again.made, again.image) == (1, sound.image)


def test_a_record_swapped_for_another_layer_s_is_made_again(wheels: Path, store: Store) -> None:
    sound = wheelimage.build(wheels, store)
    one, other = store.layer_keys()[:2]
    store.layer_path(other).write_bytes(store.layer_path(one).read_bytes())
    again = wheelimage.build(wheels, store)
    assert (again.made, again.image) == (1, sound.image)


@pytest.mark.parametrize("refused", ["hardlink_to"])
def test_a_file_system_without_hard_links(
    refused: str, wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = wheelimage.build(wheels, Store(store.root.parent / "with-links"))

    def refuse(*_: object) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(Path, refused, refuse)
    assert wheelimage.build(wheels, store).image == sound.image


def test_a_store_that_may_not_be_written_is_said(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        wheelimage.build(wheels, Store(tmp_path / "file" / "store"))
