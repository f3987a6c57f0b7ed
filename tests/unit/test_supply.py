"""Which locked bytes are there, and giving them to another store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagebuilder import supply
from imagebuilder.errors import StoreError
from imagebuilder.lock import Wheel
from imagebuilder.site import Site
from imagebuilder.store import Store
from tests.unit import samples

DATA = b"a wheel"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wheel(store: Store) -> Wheel:
    """A wheel whose bytes are in the store."""
    sha256 = hashlib.sha256(DATA).hexdigest()
    store.download(sha256).parent.mkdir(parents=True)
    store.download(sha256).write_bytes(DATA)
    return samples.wheel("here", size=len(DATA)).model_copy(update={"sha256": sha256})


def test_what_the_store_lacks(store: Store, wheel: Wheel) -> None:
    other = samples.wheel("elsewhere")
    assert supply.absent((wheel, other), store) == (other,)
    assert supply.absent((wheel.model_copy(update={"size": 99}),), store) != ()


def test_nothing_to_fetch_asks_nobody(store: Store) -> None:
    nowhere = Site(index="http://127.0.0.1:9/", apt_mirror="http://127.0.0.1:9/")
    supply.fetch((), samples.lock(), store, nowhere, advance=lambda _k, _c: None, finished=lambda _k: None)


def test_another_store_gets_the_bytes(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    target = Store(tmp_path / "export")
    for _ in range(2):
        assert supply.copy((wheel,), store, target) == len(DATA)
    assert target.download(wheel.sha256).read_bytes() == DATA
    assert list((target.root / "work").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        supply.copy((wheel,), store, Store(tmp_path / "file" / "store"))


def test_files_are_named_as_where_they_come_from() -> None:
    assert supply.file_name(samples.deb("gcc-14", "14.2.0-19")) == "gcc-14_14.2.0-19_amd64.deb"
    assert supply.file_name(samples.wheel("torch", "2.10.0")) == "torch-2.10.0-py3-none-any.whl"
