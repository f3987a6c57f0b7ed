"""One recipe by both engines: the same files and settings (a component that is compiled: soak)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core import process
from imagebuilder.layers.package import build_package_wheel
from imagebuilder.plan import PackageLayer
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import read_locks, read_plans
from tests.support import contents, recipes, sameness
from tests.support.answers import built_image
from tests.support.sameness import Side

PROGRAM = Path(sys.executable).parent / "imagebuilder"
_SECONDS = 3000


def build(recipe: Path, store: Store, *options: str | Path) -> dict[str, Any]:
    argv: tuple[str | Path, ...] = (PROGRAM, "build", recipe, "--store", store.root, "--json")
    result = process.run([*argv, "--progress", "lines", *options], timeout=_SECONDS)
    found: dict[str, Any] = built_image(result.stdout)
    return found


@pytest.fixture(scope="module")
def shop(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the downloads of the session's, so that nothing of its gigabytes stays."""
    folder = tmp_path_factory.mktemp("engines")
    downloads = store.root / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (folder / "downloads").symlink_to(downloads)
    yield Store(folder)
    shutil.rmtree(folder)
    # The SDK's own time limit is too short for gigabytes.
    process.run(["docker", "buildx", "prune", "--force"], timeout=_SECONDS)


class Layout:
    """An image that was written as an OCI layout: what its blobs say."""

    def __init__(self, folder: Path, told: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = self.json(told["digest"])
        self.side = Side(blobs=[self.blob(layer["digest"]) for layer in self.manifest["layers"]])

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def json(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(digest).read_bytes())
        return found


def side(image: ImageRecord, store: Store) -> Side:
    return Side(blobs=[store.blob(layer.record.digest) for layer in image.layers])


def test_both_engines_give_the_same_files(store: Store, shop: Store, tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(recipes.SMALL)
    require_same_files(recipe, store, shop)


PACKAGE = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "trainer"
version = "1.0"
scripts = {train = "trainer:main"}
[tool.setuptools]
packages = ["trainer"]
ext-modules = [{name = "trainer.fast", sources = ["trainer/fast.c"]}]
"""
MODULE = """
#include <Python.h>
static PyObject *where(PyObject *self, PyObject *none) { return PyUnicode_FromString(__FILE__); }
static PyMethodDef methods[] = {{"where", where, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", NULL, -1, methods};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""


def test_a_package_with_a_module_in_c_comes_out_the_same(store: Store, shop: Store, tmp_path: Path) -> None:
    (source := tmp_path / "package" / "trainer").mkdir(parents=True)
    (source.parent / "pyproject.toml").write_text(PACKAGE)
    (source / "__init__.py").write_text("from trainer.fast import where\n\ndef main(): print(where())\n")
    (source / "fast.c").write_text(MODULE)
    recipe = tmp_path / "small-package.yaml"
    text = recipes.SMALL.replace("name: small", "name: small-package")
    recipe.write_text(f"{text}apt: [gcc, python3-dev]\nproject: package\n")
    require_same_files(recipe, store, shop)
    embedded = store.image(recipe.stem)
    assert embedded is not None
    (made,) = (layer for layer in embedded.layers if layer.title == "your package: trainer")
    site = "opt/venv/lib/python3.13/site-packages/trainer"
    binary = contents.read([store.blob(made.record.digest)], f"{site}/fast.cpython-313-x86_64-linux-gnu.so")
    assert b"trainer/fast.c\0" in binary
    assert b"/build" not in binary
    # Again, from a copy elsewhere, with nothing of the first build.
    shutil.copytree(tmp_path / "package", tmp_path / "other" / "package")
    ((_, plan),) = read_plans(recipe)
    (layer,) = (layer for layer in plan.layers if isinstance(layer, PackageLayer))
    downloads = {deb.sha256: store.download(deb.sha256) for deb in layer.packages}
    downloads |= {wheel.sha256: store.download(wheel.sha256) for wheel in layer.requirements.wheels}
    fresh = Store(tmp_path / "fresh")
    again = build_package_wheel(layer, tmp_path / "other" / "package", downloads, fresh)
    assert again == store.layer(layer.wheel_key)


def require_same_files(recipe: Path, store: Store, shop: Store) -> None:
    """Build a recipe by both engines, the embedded one into the session's store, and compare them."""
    build(recipe, store)
    embedded = store.image(recipe.stem)
    assert embedded is not None
    place = shop.root / recipe.stem
    docker = Layout(place, build(recipe, shop, "--engine", "docker", "--output", place))
    wrong, used = sameness.differences(side(embedded, store), docker.side)
    assert wrong == []
    # What nothing needs any more is no longer allowed.
    assert used == {rule.paths for rule in sameness.ALLOWED}
    theirs, ours = (
        docker.json(docker.manifest["config"]["digest"]),
        json.loads(store.blob(embedded.config).read_bytes()),
    )
    # The lock's date: BuildKit takes it as SOURCE_DATE_EPOCH.
    assert theirs["created"] == ours["created"] == read_locks(recipe).file.sections[0].created
    config, ours = theirs["config"], ours["config"]
    assert config["Labels"].pop("org.imagebuilder.engine") == "docker"
    for key in ("Entrypoint", "User", "WorkingDir", "ExposedPorts", "Labels"):
        assert config[key] == ours[key]
    assert sorted(config["Env"]) == sorted(ours["Env"])
    assert not config.get("Cmd")
    shutil.rmtree(place)
