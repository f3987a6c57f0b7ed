from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from imagebuilder.errors import StoreError
from imagebuilder.store import ImageLayer, ImageRecord, LayerRecord, Store

KEY = "ab" * 32
DATA = b"some bytes"
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def layer_of(store: Store, data: bytes) -> LayerRecord:
    digest, size = store.put_bytes(data)
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")


def image_of(store: Store, name: str = "demo") -> ImageRecord:
    layer = ImageLayer(record=layer_of(store, DATA), title="a layer", component="torch")
    config, manifest = store.put_bytes(b"config"), store.put_bytes(b"manifest")
    return ImageRecord(
        name=name,
        manifest=manifest[0],
        config=config[0],
        size=24,
        tag="t",
        tags=("t",),
        lock="0" * 64,
        layers=(layer,),
    )


def test_a_blob_is_found_under_its_digest(store: Store) -> None:
    assert store.put_bytes(DATA) == (DIGEST, len(DATA))
    assert store.blob(DIGEST).read_bytes() == DATA
    assert store.has_blob(DIGEST)
    assert store.has_blob(DIGEST, len(DATA))
    assert not store.has_blob(DIGEST, len(DATA) + 1)


def test_a_writer_takes_pieces(store: Store) -> None:
    with store.writer() as writer:
        for start in range(len(DATA)):
            writer.write(memoryview(DATA)[start : start + 1])
        assert not store.has_blob(DIGEST)
        assert writer.commit() == (DIGEST, len(DATA))
    assert store.has_blob(DIGEST)


def test_a_writer_left_without_commit_leaves_nothing(store: Store) -> None:
    def write_and_fail() -> None:
        with store.writer() as writer:
            writer.write(DATA)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert not store.has_blob(DIGEST)
    assert not list((store.root / "work").iterdir())


def test_a_torn_blob_is_mended_by_writing_it_again(store: Store) -> None:
    store.put_bytes(DATA)
    store.blob(DIGEST).chmod(0o644)
    store.blob(DIGEST).write_bytes(b"")
    store.put_bytes(DATA)
    assert store.blob(DIGEST).read_bytes() == DATA


def test_blobs_are_read_only(store: Store) -> None:
    store.put_bytes(DATA)
    assert store.blob(DIGEST).stat().st_mode & 0o222 == 0


@pytest.mark.parametrize(
    "name", ["", "sha256:", "../../etc/passwd", "sha256:../x", "A" * 64, "sha512:" + "a" * 64]
)
def test_names_lead_nowhere_else(store: Store, name: str) -> None:
    for place in (store.blob, store.download, store.report, store.layer, store.layer_path):
        with pytest.raises(StoreError, match="is not a sha256 digest"):
            place(name)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 129])
def test_image_names_lead_nowhere_else(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="is not an image's name"):
        store.image(name)


def test_downloads_count_when_they_are_complete(store: Store) -> None:
    path = store.download(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1234")
    assert store.has_download(KEY, 4)
    assert not store.has_download(KEY, 5)


def test_a_layer_is_remembered(store: Store) -> None:
    record = layer_of(store, DATA)
    assert store.layer(KEY) is None
    store.put_layer(KEY, record)
    assert store.layer(KEY) == record
    assert store.layer_keys() == (KEY,)


def test_a_layer_without_its_whole_blob_is_absent(store: Store) -> None:
    record = layer_of(store, DATA)
    store.put_layer(KEY, record)
    store.blob(record.digest).chmod(0o644)
    store.blob(record.digest).write_bytes(b"torn")
    assert store.layer(KEY) is None
    store.blob(record.digest).unlink()
    assert store.layer(KEY) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"digest": "sha256:zz"}', "\xff"])
def test_a_damaged_record_is_absent_and_can_be_replaced(store: Store, text: str) -> None:
    record = layer_of(store, DATA)
    store.put_layer(KEY, record)
    store.layer_path(KEY).write_text(text, encoding="latin-1")
    assert store.layer(KEY) is None
    store.put_layer(KEY, record)
    assert store.layer(KEY) == record


def test_an_image_is_remembered(store: Store) -> None:
    image = image_of(store)
    store.put_image(image)
    assert store.image("demo") == image
    assert store.image_names() == ("demo",)
    assert store.image("other") is None


@pytest.mark.parametrize("data", [DATA, b"config", b"manifest"])
def test_an_image_without_one_of_its_blobs_is_absent(store: Store, data: bytes) -> None:
    store.put_image(image_of(store))
    store.blob(hashlib.sha256(data).hexdigest()).unlink()
    assert store.image("demo") is None


def test_work_folders_vanish_whatever_is_in_them(store: Store) -> None:
    def fill_and_fail() -> None:
        with store.work() as folder:
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "a" / "b" / "file").write_bytes(b"1")
            (folder / "a" / "link").symlink_to("/nowhere")
            (folder / "a").chmod(0o500)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill_and_fail()
    assert not list((store.root / "work").iterdir())


def test_exclusive_lets_one_in_at_a_time(store: Store) -> None:
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        with store.exclusive("key"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_exclusive_of_another_key_does_not_wait(store: Store) -> None:
    with store.exclusive("one"), store.exclusive("two"):
        pass


def test_alone_is_refused_while_somebody_builds(store: Store) -> None:
    with (
        store.in_use(),
        store.in_use(),
        pytest.raises(StoreError, match="in use by a running build"),
        store.alone(),
    ):
        pass
    with store.alone():
        pass


def _write_and_hang(root: Path) -> None:
    with Store(root).work() as folder, Store(root).writer() as writer:
        writer.write(DATA)
        (folder / "started").touch()
        time.sleep(60)


def test_what_a_killed_build_left_is_cleared_by_the_next(store: Store) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_write_and_hang, args=(store.root,))
    child.start()
    deadline = time.monotonic() + 30
    while not list((store.root / "work").glob("*/started")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert child.pid is not None
    with store.in_use():
        assert len(list((store.root / "work").iterdir())) == 2  # it lives: nothing of it is touched
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    store.put_bytes(b"other")
    assert not list((store.root / "work").iterdir())
    assert not store.has_blob(DIGEST)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "imagebuilder cache prune"),
        (errno.EACCES, "IMAGEBUILDER_STORE"),
        (errno.EROFS, "read-only"),
    ],
)
def test_what_the_disk_refuses_is_explained(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StoreError, match="cannot be written") as caught:
        store.put_bytes(DATA)
    monkeypatch.undo()
    assert hint in str(caught.value)
    assert not list((store.root / "work").iterdir())


def test_a_store_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Not a directory"):
        Store(tmp_path / "file" / "store").put_bytes(DATA)


def test_nothing_is_made_by_reading(store: Store) -> None:
    assert store.layer(KEY) is None
    assert store.image("demo") is None
    assert not store.has_blob(DIGEST)
    assert not store.root.exists()


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("IMAGEBUILDER_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Store.default().root == tmp_path / ".cache" / "imagebuilder"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert Store.default().root == Path("/var/cache/imagebuilder")
    monkeypatch.setenv("IMAGEBUILDER_STORE", "~/mine")
    assert Store.default().root == tmp_path / "mine"


def test_records_are_json_for_people(store: Store) -> None:
    store.put_image(image_of(store))
    assert json.loads(store.image_path("demo").read_text())["layers"][0]["title"] == "a layer"
