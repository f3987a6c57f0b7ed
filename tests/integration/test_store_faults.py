"""The store under fire: builds killed, builds at once, a full disk, one that is read-only. No engine needed.

A sample of what `python -m bench.store_faults` does at length.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.errors import EnvironmentFault, StoreError
from imagebuilder.store import Store
from tests.support import storefaults, wheelimage
from tests.support.storefaults import Start

BUILD = f"{sys.executable} -m tests.support.wheelimage"
PROGRAM = Path(sys.executable).parent / "imagebuilder"
COUNT, SIZE = 12, 4_000_000


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheelimage.make_wheels(folder, COUNT, SIZE)
    return folder


@pytest.fixture
def start(wheels: Path) -> Start:
    return storefaults.wheels(wheels)


@pytest.fixture(scope="module")
def digest(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    """What a build that nobody disturbs gives."""
    store = Store(tmp_path_factory.mktemp("quiet"))
    return storefaults.built(storefaults.wheels(wheels), store)["manifest"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_builds_killed_at_random_points_leave_a_store_that_works(
    start: Start, store: Store, digest: object
) -> None:
    def fresh() -> None:
        storefaults.forget(store, "blobs", "layers", "downloads", "images")

    kills = storefaults.killed_at_random(start, store, 15, seed=1, fresh=fresh)
    assert kills.hit >= 5
    assert storefaults.built(start, store)["manifest"] == digest
    assert storefaults.damages(store) == []
    assert list((store.root / "work").iterdir()) == []


def test_eight_builds_at_once_make_everything_once(start: Start, store: Store, digest: object) -> None:
    said = storefaults.at_once(start, store, 8)
    assert {one["manifest"] for one in said} == {digest}
    assert sum(int(str(one["fetched"])) for one in said) < 1.1 * COUNT * SIZE
    assert storefaults.damages(store) == []


def test_a_full_disk_is_said_and_nothing_half_written_stays(
    wheels: Path, tmp_path: Path, digest: object
) -> None:
    """The store lies on a file system of its own, in a namespace that ends with the test's commands."""
    script = f"""
        set -u
        mount -t tmpfs -o size={COUNT * SIZE}  none "$1"
        {BUILD} "$2" "$1/store"; echo "code $?"
        find "$1/store/work" "$1/store/blobs" -newer "$1" -type f -name 'blob-*'
        mount -o remount,size={4 * COUNT * SIZE} "$1"
        {BUILD} "$2" "$1/store"; echo " code $?"
    """
    result = in_a_namespace(script, tmp_path, wheels)
    first, last = result.stdout.splitlines()
    assert first == f"code {StoreError.exit_code}"
    assert "No space left on device" in result.stderr
    assert "imagebuilder cache prune" in result.stderr
    assert str(digest) in last
    assert last.endswith("code 0")


def test_a_store_on_a_read_only_file_system(wheels: Path, tmp_path: Path, digest: object) -> None:
    """What is there can be used and checked; what is missing is an error that says why it cannot be made."""
    script = f"""
        set -u
        mount --bind "$1" "$1"
        {BUILD} "$2" "$1/store"; echo " code $?"
        mount -o remount,bind,ro "$1"
        {BUILD} "$2" "$1/store"; echo " code $?"
        {PROGRAM} cache verify --store "$1/store" >/dev/null; echo "code $?"
        mount -o remount,bind,rw "$1"
        rm -r "$1/store/layers"
        mount -o remount,bind,ro "$1"
        {BUILD} "$2" "$1/store"; echo "code $?"
    """
    result = in_a_namespace(script, tmp_path, wheels)
    first, second, verified, missing = result.stdout.splitlines()
    for line in (first, second):
        assert str(digest) in line
        assert line.endswith("code 0")
    assert verified == "code 0", result.stderr
    assert missing == f"code {StoreError.exit_code}"
    assert "Read-only file system" in result.stderr
    assert "IMAGEBUILDER_STORE" in result.stderr


def in_a_namespace(script: str, folder: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that may mount, as root or as anyone; `$1` is a folder to mount on, `$2` the wheels."""
    target = folder / "mounted"
    target.mkdir()
    try:
        return subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", target, wheels],
            cwd=wheelimage.ROOT,
            text=True,
            capture_output=True,
            timeout=300,
            check=True,
        )
    except FileNotFoundError as error:
        raise EnvironmentFault("unshare is missing") from error


EXPORT = """
import sys
from pathlib import Path
from imagebuilder.image import layout
from imagebuilder.store import Store
store = Store(Path(sys.argv[1]))
layout.export(store.image("wheels"), store, Path(sys.argv[2]))
"""


def test_a_store_on_a_file_system_without_hard_links(
    wheels: Path, store: Store, tmp_path: Path, digest: object
) -> None:
    """What is a link elsewhere is a copy here: a build, the same digest, and an export that is whole."""

    def run(*command: str) -> str:
        refused = [sys.executable, "-m", "tests.support.nolinks", *command]
        return process.run(refused, timeout=120, cwd=wheelimage.ROOT).stdout

    with pytest.raises(process.CommandError, match="Operation not permitted"):
        run("ln", str(next(wheels.iterdir())), str(tmp_path / "linked"))
    said = run(sys.executable, "-m", "tests.support.wheelimage", str(wheels), str(store.root))
    assert json.loads(said)["manifest"] == digest
    run(sys.executable, "-c", EXPORT, str(store.root), str(tmp_path / "image"))
    blobs = sorted((tmp_path / "image" / "blobs" / "sha256").iterdir())
    assert len(blobs) == COUNT + 3  # a layer of settings, the config and the manifest
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        assert blob.stat().st_nlink == 1
    assert storefaults.damages(store) == []
