"""What tools of clusters make of our images: squashfs files, and umoci, which unpacks OCI folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from imagebuilder.core.process import run
from imagebuilder.store import Store
from tests.support.recipes import SMALL

PROGRAM = Path(sys.executable).parent / "imagebuilder"
# What a squashfs file holds besides the image: it has no place for the image's config.
OF_SQUASHFS = {
    *(".singularity.d", ".singularity.d/env", ".singularity.d/env/10-docker2singularity.sh"),
    *(".singularity.d/runscript", "dev", "etc/environment", "etc/fstab", "etc/rc"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def squashfs(recipe: Path, store: Store, folder: Path) -> Path:
    return _built(recipe, store, folder / "one.sqsh")


def _built(recipe: Path, store: Store, output: Path) -> Path:
    run([PROGRAM, "build", recipe, "--store", store.root, "--output", output], timeout=1200)
    return output


def test_squashfs_is_the_same_from_another_store(
    squashfs: Path, recipe: Path, store: Store, folder: Path
) -> None:
    other = Store(folder / "store")
    shutil.copytree(store.root / "downloads", other.root / "downloads", copy_function=os.link)
    again = _built(recipe, other, folder / "two.sqsh")
    one, two = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (squashfs, again))
    assert one == two
    # Times that a clock gives would differ only now and then.
    said = run(["unsquashfs", "-s", squashfs], timeout=60).stdout
    assert "Creation or last append time Thu Jan  1 00:00:00 1970" in said


def test_squashfs_and_umoci_unpack_to_the_same_files(
    squashfs: Path, recipe: Path, store: Store, folder: Path
) -> None:
    image = _built(recipe, store, folder / "image")
    run(["umoci", "unpack", "--image", f"{image}:py3.13-trixie", folder / "bundle"], timeout=300)
    run(["unsquashfs", "-quiet", "-no-progress", "-d", folder / "plain", squashfs], timeout=300)
    unpacked, plain = _files(folder / "bundle" / "rootfs"), _files(folder / "plain")
    assert len(unpacked) > 5000
    # Debian's certificates have names with accents, which a tar keeps in headers of their own.
    assert any(not path.isascii() for path in unpacked)
    differing = sorted(path for path in unpacked.keys() | plain if unpacked.get(path) != plain.get(path))
    assert differing == sorted(OF_SQUASHFS)


def _files(root: Path) -> dict[str, tuple[object, ...]]:
    """All paths below a folder with type, mode, owner, time, link, content, attributes, and other names."""
    found: dict[str, tuple[object, ...]] = {}
    names: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        inside, facts = str(path.relative_to(root)), path.lstat()
        first = inside if stat.S_ISDIR(facts.st_mode) else names.setdefault(facts.st_ino, inside)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(facts.st_mode) else ""
        link = str(path.readlink()) if path.is_symlink() else ""
        attributes = [(name, os.getxattr(path, name, follow_symlinks=False)) for name in _attributes(path)]
        owner = (facts.st_uid, facts.st_gid)
        found[inside] = (facts.st_mode, owner, int(facts.st_mtime), link, content, attributes, first)
    return found


def _attributes(path: Path) -> list[str]:
    return sorted(name for name in os.listxattr(path, follow_symlinks=False) if "selinux" not in name)
