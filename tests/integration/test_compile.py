"""A package of `compile:`, for real: compiled once in its root, seen from inside, imported in the image."""

from __future__ import annotations

import hashlib
import io
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.plan import CompiledLayer
from imagebuilder.store import Store
from imagebuilder.workflow import read_plans
from tests.integration.conftest import remove_images
from tests.integration.test_examples import run
from tests.support import recipes

# The build itself says what it sees: only the loopback interface, and nothing of this host.
SETUP = """
import os
from setuptools import Extension, setup
assert [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]] == ["lo"]
assert not os.path.exists(HOST), HOST
setup(name="tinyext", version="1.0", ext_modules=[Extension("tinyext", ["tinyext.c"])])
"""
SOURCE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tinyext", 0, -1, methods};
PyMODINIT_FUNC PyInit_tinyext(void) { return PyModule_Create(&module); }
"""
PATCH = "--- a/tinyext.c\n+++ b/tinyext.c\n@@ -1,2 +1,3 @@\n+#define ANSWER {}\n \n #include <Python.h>\n"
# What another torch leaves behind: a function that no library has. C takes an undeclared one for granted.
OLD = "({ extern int _ZN5torch3oldEv(void); _ZN5torch3oldEv(); })"


def put(folder: Path, answer: str, *more: str) -> Path:
    """Write a recipe with a patch, a site file, and a folder with the source; returns the recipe."""
    patch = PATCH.format(answer)
    (folder / "answer.patch").write_text(patch)
    sha256 = hashlib.sha256(patch.encode()).hexdigest()
    recipe = folder / "tinyext.yaml"
    wanted = ", ".join(["tinyext==1.0", *more])
    text = recipes.SMALL.replace("name: small", "name: tinyext").replace("[numpy]", f"[{wanted}]")
    entry = f"{{name: tinyext, patches: [{{file: answer.patch, sha256: {sha256}}}]}}"
    recipe.write_text(f"{text}compile: [{entry}]\n")
    files = {
        "setup.py": SETUP.replace("HOST", repr(str(folder))),
        "tinyext.c": SOURCE,
        "PKG-INFO": "Metadata-Version: 2.1\nName: tinyext\nVersion: 1.0\nRequires-Dist: packaging\n",
    }
    (folder / "sources").mkdir(exist_ok=True)
    with tarfile.open(folder / "sources/tinyext-1.0.tar.gz", "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"tinyext-1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    (folder / "site.yaml").write_text(f"wheel_folders: [{folder}/sources]\n")
    return recipe


def built(recipe: Path, store: Store, *options: str, code: int = 0) -> str:
    """Lock and build; returns what the build says."""
    site = ("--site", recipe.parent / "site.yaml")
    run("lock", recipe, *site, store=store)
    result = run("build", recipe, *site, *options, "--progress", "lines", store=store, code=code)
    return result.stdout + result.stderr


@pytest.fixture(autouse=True)
def no_image_left(engine: DockerClient) -> Iterator[None]:
    yield
    remove_images(engine, "tinyext")


def test_a_source_is_compiled_once_and_imported_in_the_image(
    store: Store, engine: DockerClient, tmp_path: Path
) -> None:
    # A patch of this run's own, so that no earlier one has compiled it.
    number = secrets.randbelow(1 << 30)
    recipe = put(tmp_path, str(number))
    assert "done         tinyext 1.0, compiled" in built(recipe, store, "--load")
    asked = ["python", "-c", "import packaging, tinyext; print(tinyext.answer())"]
    assert engine.containers.run("tinyext:latest", asked, remove=True) == f"{number}\n".encode()
    # Another package in the image compiles nothing; the wheel travels with `fetch`.
    assert "cached       tinyext 1.0, compiled" in built(put(tmp_path, str(number), "idna"), store)
    away = tmp_path / "away"
    run("fetch", recipe, "--site", tmp_path / "site.yaml", "--output", away, store=store)
    ((_, plan),) = read_plans(recipe)
    (layer,) = [layer for layer in plan.layers if isinstance(layer, CompiledLayer)]
    assert Store(away).layer(layer.wheel_key) == store.layer(layer.wheel_key) is not None


def test_a_source_for_another_torch_ends_with_the_symbol_that_is_missing(
    store: Store, tmp_path: Path
) -> None:
    said = built(put(tmp_path, OLD), store, code=7)
    assert "tinyext.cpython-313" in said
    assert "needs the symbol torch::old(), which no library of the image has" in said
