from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core import files
from imagebuilder.errors import InputError, StoreError
from imagebuilder.image import layout, oci
from imagebuilder.layers.files import build_files_layer
from imagebuilder.plan import BytecodeLayer, Config, Entry, FilesLayer, Plan
from imagebuilder.store import EMPTY_LAYER, ImageRecord, Store
from tests.unit import samples

LAYERS = tuple(
    FilesLayer(name=name, entries=(Entry(path=f"/etc/{name}", kind="file", mode=0o644, text=name),))
    for name in ("one", "two")
)
PLAN = Plan(
    name="demo",
    architecture="amd64",
    layers=LAYERS,
    config=Config(
        env=(("LANG", "C.UTF-8"), ("PATH", "/bin")),
        labels=(("org.example.a", "ü"),),
        entrypoint=("/usr/bin/tini", "--"),
        cmd=(),
        user="0:0",
        workdir="/root",
        ports=(22,),
    ),
    tags=("torch2-py3.13",),
    lock_checksum="c" * 64,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> ImageRecord:
    return oci.write_image(PLAN, [build_files_layer(layer, store) for layer in LAYERS], store)


def document(store: Store, digest: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(store.blob(digest).read_bytes())
    return loaded


def test_the_manifest_names_config_and_layers(store: Store, image: ImageRecord) -> None:
    manifest = document(store, image.manifest)
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"]["digest"] == image.config
    assert [layer["digest"] for layer in manifest["layers"]] == [
        layer.record.digest for layer in image.layers
    ]
    for descriptor in (manifest["config"], *manifest["layers"]):
        assert store.blob(descriptor["digest"]).stat().st_size == descriptor["size"]


def test_the_config_says_what_the_plan_says(store: Store, image: ImageRecord) -> None:
    config = document(store, image.config)
    assert config == {
        "created": "1970-01-01T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["LANG=C.UTF-8", "PATH=/bin"],
            "Entrypoint": ["/usr/bin/tini", "--"],
            "User": "0:0",
            "WorkingDir": "/root",
            "ExposedPorts": {"22/tcp": {}},
            "Labels": {"org.example.a": "ü"},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.record.diff_id for layer in image.layers]},
        "history": [
            {"created": "1970-01-01T00:00:00Z", "created_by": f"imagebuilder: {layer.title}"}
            for layer in LAYERS
        ],
    }


def test_config_and_history_have_the_lock_s_date(store: Store) -> None:
    date = "2026-11-21T02:10:46Z"
    config = replace(PLAN.config, created=date)
    records = [build_files_layer(layer, store) for layer in LAYERS]
    made = oci.write_image(replace(PLAN, config=config), records, store)
    written = document(store, made.config)
    assert {written["created"], *(line["created"] for line in written["history"])} == {date}
    assert config.epoch == 1795227046


def test_an_index_has_the_newest_date_of_its_images() -> None:
    def entry(platform: str, **labels: str) -> oci.IndexEntry:
        return oci.IndexEntry(platform=platform, digest=f"sha256:{'a' * 64}", size=1, labels=labels)

    name = "org.opencontainers.image.created"
    older, newer = ({name: f"2026-11-2{day}T00:00:00Z", "a": "b"} for day in (1, 2))
    made = oci.index_document([entry("linux/amd64", **newer), entry("linux/arm64", **older)], "")
    assert json.loads(made)["annotations"] == newer
    made = oci.index_document([entry("linux/amd64", a="b"), entry("linux/arm64")], "")
    assert json.loads(made)["annotations"] == {}


def test_the_image_is_remembered(store: Store, image: ImageRecord) -> None:
    assert store.image("demo") == image
    assert image.size == sum(store.blob(digest).stat().st_size for digest in layout.blobs(image))
    assert (image.tag, image.lock) == ("torch2-py3.13", "c" * 64)
    assert [layer.component for layer in image.layers] == ["one", "two"]


def test_the_digest_is_that_of_the_plan_alone(image: ImageRecord, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    again = oci.write_image(PLAN, [build_files_layer(layer, other) for layer in LAYERS], other)
    assert again == image
    assert image.manifest == "sha256:1da87134ad602dc65d07a1e3861ee93d9f6b49f187e32e74733314e181fb95d9"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_layout(folder: Path) -> dict[str, Any]:
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    for blob in (folder / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index: dict[str, Any] = json.loads((folder / "index.json").read_bytes())
    return index


def test_a_folder_is_an_oci_layout_with_shared_blobs(
    store: Store, image: ImageRecord, tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "out"
    layout.export(image, store, target)
    (manifest,) = read_layout(target)["manifests"]
    assert manifest["digest"] == image.manifest
    assert manifest["size"] == store.blob(image.manifest).stat().st_size
    assert manifest["platform"] == {"architecture": "amd64", "os": "linux"}
    names = {f"sha256:{path.name}" for path in (target / "blobs" / "sha256").iterdir()}
    assert names == set(layout.blobs(image))
    for digest in names:
        assert (target / "blobs" / "sha256" / digest[7:]).samefile(store.blob(digest))
    assert names_in(tmp_path / "deep") == ["out"]


def test_blobs_are_copied_where_links_cannot_be(
    store: Store, image: ImageRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    layout.export(image, store, tmp_path / "out")
    read_layout(tmp_path / "out")
    assert not (tmp_path / "out" / "blobs" / "sha256" / image.config[7:]).samefile(store.blob(image.config))


def test_an_older_layout_is_replaced(store: Store, image: ImageRecord, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    layout.export(image, store, target)
    (target / "blobs" / "sha256" / ("0" * 64)).write_bytes(b"of an older image")
    layout.export(image, store, target)
    assert len(list((target / "blobs" / "sha256").iterdir())) == 4
    assert names_in(tmp_path) == ["out", "store"]


@pytest.mark.parametrize("names", [["notes.txt"], ["oci-layout", "notes.txt"]])
def test_somebody_elses_folder_is_not_replaced(
    store: Store, image: ImageRecord, tmp_path: Path, names: list[str]
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    for name in names:
        (target / name).touch()
    with pytest.raises(InputError, match="is not an OCI image"):
        layout.export(image, store, target)
    assert names_in(target) == sorted(names)


def test_files_and_folders_in_the_way(store: Store, image: ImageRecord, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(InputError, match="is not a folder"):
        layout.export(image, store, tmp_path / "file")
    with pytest.raises(InputError, match="is a folder"):
        layout.export(image, store, tmp_path / "folder.tar")


def test_an_archive_holds_the_same(store: Store, image: ImageRecord, tmp_path: Path) -> None:
    layout.export(image, store, tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert read_layout(tmp_path / "out")["manifests"][0]["digest"] == image.manifest
    (legacy,) = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert legacy["RepoTags"] == ["demo:torch2-py3.13"]
    assert all((tmp_path / "out" / path).is_file() for path in (legacy["Config"], *legacy["Layers"]))


def test_an_archive_is_the_same_every_time(store: Store, image: ImageRecord, tmp_path: Path) -> None:
    layout.export(image, store, tmp_path / "a.tar")
    layout.export(image, store, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_an_engine_is_given_the_same_under_its_own_name(
    store: Store, image: ImageRecord, tmp_path: Path
) -> None:
    reference = "localhost/demo:latest-arm64"
    told: list[int] = []
    pieces = layout.stream(layout.of_image(image, store, reference), told.append)
    (tmp_path / "out.tar").write_bytes(b"".join(pieces))
    assert sum(told) == image.size
    with tarfile.open(tmp_path / "out.tar") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    (entry,) = read_layout(tmp_path / "out")["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": "latest-arm64",
    }
    (docker,) = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert docker["RepoTags"] == [reference]


def test_a_missing_blob_is_an_error_before_anything_is_written(
    store: Store, image: ImageRecord, tmp_path: Path
) -> None:
    store.blob(image.layers[0].record.digest).unlink()
    with pytest.raises(StoreError, match="is missing from the store"):
        layout.export(image, store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_behind(
    store: Store, image: ImageRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Iterator[bytes]:
        yield b"a header"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layout, "stream", refuse)
    with pytest.raises(StoreError, match="No space left"):
        layout.export(image, store, tmp_path / "out.tar")
    assert names_in(tmp_path) == ["store"]


@pytest.fixture
def private() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private")
def test_what_is_written_is_as_private_as_the_umask_says(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image = oci.write_image(PLAN, [build_files_layer(layer, store) for layer in LAYERS], store)
    (tmp_path / "found").write_bytes(b"x")
    store.take_blob(tmp_path / "found", f"sha256:{hashlib.sha256(b'x').hexdigest()}")
    layout.export(image, store, tmp_path / "out")
    layout.export(image, store, tmp_path / "out.tar")
    files.write(tmp_path / "texts" / "x.lock", "text")
    files.write(tmp_path / "texts" / "x.lock", "another")
    wide = [path for path in tmp_path.rglob("*") if path.lstat().st_mode & 0o077]
    assert wide == []
    assert (tmp_path / "texts" / "x.lock").stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o777 for path in (store.root / "blobs").rglob("*/*/*")} <= {0o400}


def test_what_is_written_is_open_where_the_umask_says_so(
    tmp_path: Path, image: ImageRecord, store: Store
) -> None:
    before = os.umask(0o022)
    try:
        layout.export(image, store, tmp_path / "out")
        files.write(tmp_path / "x.lock", "text")
        digest, _ = store.put_bytes(b"y")
    finally:
        os.umask(before)
    places = (tmp_path / "out", tmp_path / "x.lock", store.blob(digest))
    assert [oct(path.stat().st_mode & 0o777) for path in places] == ["0o755", "0o644", "0o444"]


def with_bytecode(*components: str) -> Plan:
    """Add a layer of bytecode for each component."""
    layers = (
        BytecodeLayer(
            component=name,
            wheels=(samples.wheel(name, component=name),),
            python="3.13",
            packages=(),
            below=(),
            architecture="amd64",
        )
        for name in components
    )
    return replace(PLAN, layers=(*LAYERS, *layers))


def test_an_empty_layer_is_not_in_the_image(store: Store) -> None:
    """It has no place in the manifest, in the config's diffIDs, or in the history."""
    records = [build_files_layer(layer, store) for layer in LAYERS]
    plan = with_bytecode("cuda", "nccl")
    image = oci.write_image(plan, [*records, EMPTY_LAYER, EMPTY_LAYER], store)
    assert image.manifest == oci.write_image(PLAN, records, store).manifest
    assert [layer.title for layer in image.layers] == [layer.title for layer in LAYERS]


def test_an_image_without_its_empty_layers_is_still_that_of_its_plan(store: Store) -> None:
    records = [build_files_layer(layer, store) for layer in LAYERS]
    plan = with_bytecode("cuda", "nccl")
    for layer, record in zip(plan.layers, (*records, EMPTY_LAYER, records[0]), strict=True):
        store.put_layer(layer.key, record)
    image = oci.write_image(plan, [*records, EMPTY_LAYER, records[0]], store)
    assert oci.is_image_of(plan, image, store)
    # An image that lacks a layer which is not empty; one with a layer that is empty by now; another plan's.
    assert not oci.is_image_of(plan, oci.write_image(PLAN, records, store), store)
    store.put_layer(plan.layers[-1].key, EMPTY_LAYER)
    assert not oci.is_image_of(plan, image, store)
    assert not oci.is_image_of(replace(plan, layers=plan.layers[1:]), image, store)
