"""What other tools make of the images that are written: skopeo, and Docker's own load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.core.process import run
from imagebuilder.image import layout, oci
from imagebuilder.layers.files import build_files_layer
from imagebuilder.plan import Config, Entry, FilesLayer, Plan
from imagebuilder.store import ImageRecord, Store
from tests.support.wheels import dice, make_wheel, splice

NAME = "imagebuilder-layout-test"
FILES = FilesLayer(
    name="settings",
    entries=(Entry(path="/etc/motto", kind="file", mode=0o640, text="bit for bit\n"),),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store, tmp_path: Path) -> ImageRecord:
    """An image without a system: one spliced layer with members of many kinds, and one of plain files."""
    wheel = make_wheel(tmp_path, {f"demo/{n}.bin": dice(n).randbytes(n * 1000) + bytes(n) for n in range(60)})
    plan = Plan(
        name=NAME,
        architecture="amd64",
        layers=(FILES, FILES),
        config=Config(
            env=(("PATH", "/bin"),),
            labels=(),
            entrypoint=("/run",),
            cmd=(),
            user="0:0",
            workdir="/",
            ports=(),
        ),
        tags=("test",),
        lock_checksum="0" * 64,
    )
    return oci.write_image(plan, [splice([wheel], store), build_files_layer(FILES, store)], store)


@pytest.fixture
def loaded(image: ImageRecord, store: Store, tmp_path: Path) -> Iterator[str]:
    archive = tmp_path / "image.tar"
    layout.export(image, store, archive)
    run(["docker", "load", "-i", archive], timeout=60)
    yield f"{NAME}:test"
    run(["docker", "image", "rm", f"{NAME}:test"], timeout=60)


def test_skopeo_reads_folder_and_archive(image: ImageRecord, store: Store, tmp_path: Path) -> None:
    layout.export(image, store, tmp_path / "out")
    layout.export(image, store, tmp_path / "out.tar")
    for reference in (f"oci:{tmp_path}/out:test", f"oci-archive:{tmp_path}/out.tar"):
        seen = json.loads(run(["skopeo", "inspect", reference], timeout=60).stdout)
        assert seen["Digest"] == image.manifest
        assert seen["Layers"] == [layer.record.digest for layer in image.layers]
    # A copy reads every byte, and holds blobs and diffIDs to their digests.
    run(["skopeo", "copy", f"oci:{tmp_path}/out:test", f"dir:{tmp_path}/copy"], timeout=60)
    assert len(list((tmp_path / "copy").glob("[0-9a-f]*"))) == 3


def test_docker_loads_an_archive(loaded: str, image: ImageRecord, tmp_path: Path) -> None:
    diff_ids = [layer.record.diff_id for layer in image.layers]
    seen = json.loads(run(["docker", "image", "inspect", loaded], timeout=60).stdout)
    assert seen[0]["RootFS"]["Layers"] == diff_ids
    container = run(["docker", "create", loaded], timeout=60).stdout.strip()
    try:
        run(["docker", "cp", f"{container}:/etc/motto", tmp_path / "motto"], timeout=60)
    finally:
        run(["docker", "rm", container], timeout=60)
    assert (tmp_path / "motto").read_text() == "bit for bit\n"
