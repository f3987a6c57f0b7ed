"""Wheels with holes: what they still give, how they are filled, and what a wrong record can do."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.core.progress import no_advance
from imagebuilder.fetch import locked as packages
from imagebuilder.layers.wheels.file import read_wheel
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock.model import Wheel
from imagebuilder.plan import WheelLayer
from imagebuilder.registry.cache import fill_wheel
from imagebuilder.store import LayerRecord, Store, cache, sparse
from imagebuilder.store.cache import Needed
from imagebuilder.workflow import sharing
from tests.support.wheels import PYTHON, File, dice, locked, make_wheel
from tests.unit import samples


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wheel(store: Store, tmp_path: Path) -> Wheel:
    """A wheel of which a layer was made, and that lost its large file to it."""
    return made(store, tmp_path)


def made(store: Store, folder: Path) -> Wheel:
    files: dict[str, bytes | File] = {
        "demo/__init__.py": b"answer = 42\n",
        "demo/large.so": File(data=dice(1).randbytes(700_000)),
        "demo/larger.so": File(data=dice(2).randbytes(900_000)),
        "demo/large.py": File(data=b"#" + dice(3).randbytes(300_000).hex().encode()),
        "demo-1.0.dist-info/licenses/large": File(data=dice(5).randbytes(300_000)),
        "demo/stored.so": File(data=dice(4).randbytes(300_000), method=zipfile.ZIP_STORED),
    }
    item = locked(make_wheel(folder, files))
    place = store.download(item.sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / item.file, place)
    store.put_layer("a" * 64, spliced(store, item))
    return item


def spliced(store: Store, item: Wheel) -> LayerRecord:
    layer = WheelLayer(component="python", wheels=(item,), python=PYTHON)
    return build_wheel_layer(layer, {item.sha256: store.download(item.sha256)}, store, no_advance)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_only_large_files_leave_and_come_back(store: Store, wheel: Wheel) -> None:
    place = store.download(wheel.sha256)
    before = cache.usage(store).download_bytes
    saved = sparse.squeeze(store)
    assert 1_600_000 < saved < 1_601_000
    assert cache.usage(store).download_bytes == before - saved
    assert place.stat().st_size == wheel.size
    assert place.stat().st_blocks * 512 < wheel.size - saved + 40_000
    assert sha256(place) != wheel.sha256
    # Names, metadata and modules are there as before.
    assert store.has_download(wheel.sha256, wheel.size)
    assert "demo/large.so" in [member.name for member in read_wheel(wheel.file, place).members]
    with zipfile.ZipFile(place) as zipped:
        assert zipped.read("demo/large.py").startswith(b"#")
        assert len(zipped.read("demo-1.0.dist-info/licenses/large")) == 300_000
        assert len(zipped.read("demo/stored.so")) == 300_000
    assert sparse.squeeze(store) == 0
    sparse.fill(store, wheel.sha256)
    assert sha256(place) == wheel.sha256
    assert sparse.squeeze(store) == saved


def test_a_store_with_holes_is_whole(store: Store, wheel: Wheel) -> None:
    sparse.squeeze(store)
    read: list[int] = []
    assert cache.verify(store, read.append) == ()
    assert sum(read) > wheel.size


def test_another_store_gets_a_whole_copy(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    sparse.squeeze(store)
    other = Store(tmp_path / "other")
    packages.copy([wheel], store, other)
    assert sha256(other.download(wheel.sha256)) == wheel.sha256


def test_a_layer_of_another_layout_is_made_of_it(store: Store, wheel: Wheel) -> None:
    first = store.layer("a" * 64)
    sparse.squeeze(store)
    sparse.fill(store, wheel.sha256)
    assert spliced(store, wheel) == first


def test_nothing_leaves_while_a_build_runs(store: Store, wheel: Wheel) -> None:
    with store.in_use():
        assert sparse.squeeze(store) == 0
    assert sha256(store.download(wheel.sha256)) == wheel.sha256


def test_downloads_of_another_store_stay_whole(store: Store, wheel: Wheel, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.root.mkdir()
    (other.root / "downloads").symlink_to(store.root / "downloads")
    assert spliced(other, wheel) == store.layer("a" * 64)
    assert other.sparse(wheel.sha256) is not None
    assert sparse.squeeze(other) == 0
    assert sha256(store.download(wheel.sha256)) == wheel.sha256


def test_a_wheel_whose_layer_is_gone_is_missing(store: Store, wheel: Wheel) -> None:
    sparse.squeeze(store)
    layer = store.layer("a" * 64)
    assert layer is not None
    store.blob(layer.digest).unlink()
    assert packages.absent([wheel], store) == (wheel,)
    assert not store.download(wheel.sha256).exists()
    assert store.sparse_names() == ()


def test_pruning_the_layer_takes_the_wheel_along(store: Store, wheel: Wheel) -> None:
    sparse.squeeze(store)
    cache.prune(store, keep_bytes=cache.usage(store).download_bytes)
    assert cache.usage(store).total == 0
    assert not store.download(wheel.sha256).exists()
    assert store.sparse_names() == ()


def test_a_wheel_that_is_needed_keeps_its_layer(store: Store, wheel: Wheel) -> None:
    sparse.squeeze(store)
    wanted = Needed(images=frozenset(), layers=frozenset(), downloads=frozenset({wheel.sha256}))
    assert cache.prune_to(store, wanted).files == 0
    sparse.fill(store, wheel.sha256)
    assert sha256(store.download(wheel.sha256)) == wheel.sha256


@pytest.mark.parametrize(
    "change",
    [
        {"start": 0},
        {"offset": 11},
        {"offset": 1 << 62},
        {"size": 1 << 40},
        {"start": 1 << 62},
        {"size": 0},
    ],
)
def test_a_wrong_record_ends_as_a_damaged_download(
    store: Store, wheel: Wheel, change: dict[str, int]
) -> None:
    sparse.squeeze(store)
    place = store.root / "sparse" / f"{wheel.sha256}.json"
    record = json.loads(place.read_bytes())
    record["extents"][0] |= change
    place.write_text(json.dumps(record))
    sparse.fill(store, wheel.sha256)
    assert store.download(wheel.sha256).stat().st_size == wheel.size
    assert [damage.path for damage in cache.verify(store, no_advance)] == [store.download(wheel.sha256)]


def test_a_record_for_a_whole_file_costs_nothing(store: Store, wheel: Wheel) -> None:
    """As after a crash between the record and the file."""
    record = store.sparse(wheel.sha256)
    assert record is not None
    store.put_sparse(wheel.sha256, replace(record, punched=True))
    assert cache.verify(store, no_advance) == ()
    sparse.fill(store, wheel.sha256)
    assert sha256(store.download(wheel.sha256)) == wheel.sha256


def test_parts_of_a_wheel_in_two_blobs_add_up(store: Store, wheel: Wheel) -> None:
    record = store.sparse(wheel.sha256)
    assert record is not None
    one, two = record.extents
    copied = store.blob(one.blob).read_bytes()[two.offset : two.offset + two.size]
    blob, _ = store.put_bytes(copied)
    sparse.note(store, wheel.sha256, wheel.size, [replace(two, blob=blob, offset=0)])
    found = store.sparse(wheel.sha256)
    assert found is not None
    assert [extent.blob for extent in found.extents] == [one.blob, blob]
    sparse.squeeze(store)
    sparse.fill(store, wheel.sha256)
    assert sha256(store.download(wheel.sha256)) == wheel.sha256


def test_a_cache_gets_whole_wheels(store: Store, wheel: Wheel) -> None:
    sparse.squeeze(store)
    lock = samples.lock(wheels=(wheel,))
    (entry,) = [item for item in sharing.packages(lock, store) if item.name == wheel.file]
    blob = entry.blob(store)
    assert not blob.is_whole
    fill_wheel(store, blob)
    assert entry.blob(store).is_whole
    assert sha256(blob.path) == wheel.sha256
