"""Several platforms against the real archive and index, and the index of images in other tools' hands."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from imagebuilder.core.process import run
from imagebuilder.fetch import locked
from imagebuilder.host.site import detect
from imagebuilder.image import layout
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.plan import WheelLayer
from imagebuilder.store import IndexRecord, Store
from imagebuilder.workflow import read_plan, update_lock
from tests.support.proven import put_both
from tests.support.pushing import push
from tests.unit.samples import RECIPES

# e_machine of an ELF header, 18 bytes in: elf(5).
_AARCH64 = (183).to_bytes(2, "little")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The small shipped recipe, for two platforms and not locked yet."""
    path = tmp_path / "both.yaml"
    text = (RECIPES / "cpu-mpi.yaml").read_text().replace("name: cpu-mpi", "name: both")
    path.write_text(f"{text}platforms: [linux/amd64, linux/arm64]\n")
    return path


@pytest.fixture
def index(tmp_path: Path) -> tuple[IndexRecord, Store]:
    """Images of a few bytes for two platforms, and what joins them."""
    store = Store(tmp_path / "images")
    put_both(tmp_path, store)
    found = store.index("both")
    assert found is not None
    return found, store


def test_both_platforms_resolve_and_arm64_is_spliced_here(recipe: Path, store: Store, tmp_path: Path) -> None:
    file = update_lock(recipe, None, None, Store.default()).made
    amd, arm = file.sections
    assert amd.pins == arm.pins
    assert {wheel.name: wheel.version for wheel in amd.wheels} == {w.name: w.version for w in arm.wheels}
    assert {deb.architecture for deb in arm.debs} == {"arm64", "all"}
    assert lockfile.read(locks.path_for(recipe)) == file
    lock, plan = read_plan(recipe, "linux/arm64")
    wheels = [layer for layer in plan.layers if isinstance(layer, WheelLayer)]
    packages = [wheel for layer in wheels for wheel in layer.wheels]
    locked.fetch(
        locked.absent(packages, store),
        lock,
        store,
        detect(),
        advance=lambda *_: None,
        finished=lambda _: None,
    )
    made = Store(tmp_path / "made")
    machines: dict[str, int] = {}
    for layer in wheels:
        files = {wheel.sha256: store.download(wheel.sha256) for wheel in layer.wheels}
        record = build_wheel_layer(layer, files, made, lambda _count: None)
        data = gzip.decompress(made.blob(record.digest).read_bytes())
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                file_in = tar.extractfile(member)
                head = file_in.read(20) if file_in else b""
                if head.startswith(b"\x7fELF"):
                    name = "aarch64" if head[18:20] == _AARCH64 else member.name
                    machines[name] = machines.get(name, 0) + 1
    assert set(machines) == {"aarch64"}
    assert machines["aarch64"] > 10


def test_other_tools_take_the_index(registry: str, index: tuple[IndexRecord, Store], tmp_path: Path) -> None:
    record, store = index
    name = f"{registry}/platforms/both"
    push(record, store, f"{name}:one")
    raw = run(
        ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{name}:one"], timeout=120
    ).stdout
    assert raw.encode() == store.blob(record.manifest).read_bytes()
    for image in record.images:
        architecture = image.platform.partition("/")[2]
        seen = run(
            [
                "skopeo",
                "--override-arch",
                architecture,
                "inspect",
                "--tls-verify=false",
                f"docker://{name}:one",
            ],
            timeout=120,
        )
        assert json.loads(seen.stdout)["Architecture"] == architecture
    # A copy of all reads every blob of every platform and checks its digest.
    copy = tmp_path / "copy"
    source = f"docker://{name}:one"
    run(["skopeo", "copy", "--all", "--src-tls-verify=false", source, f"oci:{copy}:x"], timeout=120)
    copied = {path.name for path in (copy / "blobs" / "sha256").iterdir()}
    assert {image.manifest.removeprefix("sha256:") for image in record.images} <= copied
    shown = run(["docker", "buildx", "imagetools", "inspect", f"{name}:one"], timeout=120).stdout
    assert record.manifest in shown
    for image in record.images:
        assert re.search(rf"Platform: +{image.platform}$", shown, re.MULTILINE)
        assert image.manifest in shown


def test_other_tools_take_the_layout(index: tuple[IndexRecord, Store], tmp_path: Path) -> None:
    record, store = index
    for name in ("layout", "layout.tar"):
        layout.export(record, store, tmp_path / name)
    for source in (f"oci:{tmp_path}/layout", f"oci-archive:{tmp_path}/layout.tar"):
        copy = tmp_path / source.partition(":")[0]
        run(["skopeo", "copy", "--all", f"{source}:{record.tag}", f"oci:{copy}:x"], timeout=120)
        manifests = json.loads((copy / "index.json").read_bytes())["manifests"]
        assert [entry["digest"] for entry in manifests] == [record.manifest]
