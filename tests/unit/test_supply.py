"""Which locked bytes are there, and giving them to another store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagebuilder.errors import StoreError
from imagebuilder.fetch import locked
from imagebuilder.fetch.download import Download
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Source, Wheel
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
    assert locked.absent((wheel, other), store) == (other,)
    assert locked.absent((wheel.model_copy(update={"size": 99}),), store) != ()


def test_nothing_to_fetch_asks_nobody(store: Store) -> None:
    nowhere = Site(index="http://127.0.0.1:9/", apt_mirror="http://127.0.0.1:9/")
    locked.fetch((), samples.lock(), store, nowhere, advance=lambda _k, _c: None, finished=lambda _k: None)


def test_another_store_gets_the_bytes(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    target = Store(tmp_path / "export")
    for _ in range(2):
        assert locked.copy((wheel,), store, target) == len(DATA)
    assert target.download(wheel.sha256).read_bytes() == DATA
    assert list((target.root / "work").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        locked.copy((wheel,), store, Store(tmp_path / "file" / "store"))


def test_files_are_named_as_where_they_come_from() -> None:
    assert locked.file_name(samples.deb("gcc-14", "14.2.0-19")) == "gcc-14_14.2.0-19_amd64.deb"
    assert locked.file_name(samples.wheel("torch", "2.10.0")) == "torch-2.10.0-py3-none-any.whl"


def test_sources_come_from_the_pool_or_the_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[str, ...]] = {}

    def take(items: list[Download], *_: object) -> None:
        asked.update({item.name: item.urls for item in items})

    pooled = Source(
        name="openmpi",
        version="5.0.7-1",
        suite="bookworm",
        path="pool/main/o/openmpi/openmpi_5.0.7.orig.tar.xz",
        file="openmpi_5.0.7.orig.tar.xz",
        size=1,
        sha256="1" * 64,
    )
    sdist = Source(name="mpi4py", version="4.1.1", file="mpi4py-4.1.1.tar.gz", size=1, sha256="2" * 64)
    monkeypatch.setattr("imagebuilder.fetch.download.fetch", take)
    monkeypatch.setattr(
        "imagebuilder.resolve.builds.locate_sdists", lambda *_: {"2" * 64: ("https://index.example/x",)}
    )
    site = Site(apt_mirror="http://mirror.example/debian", apt_security_mirror="http://mirror.example/s")
    lock = samples.lock(debs=(samples.deb("libc6", "2.41-12"),))
    locked.fetch((sdist, pooled), lock, store, site, advance=lambda _k, _c: None, finished=lambda _k: None)
    assert asked == {
        "openmpi_5.0.7.orig.tar.xz": (f"http://mirror.example/debian/{pooled.path}",),
        "mpi4py-4.1.1.tar.gz": ("https://index.example/x",),
    }
    assert [locked.file_name(item) for item in (pooled, sdist)] == [pooled.file, sdist.file]
