"""The user's own package, for real: built by its backend here and elsewhere, and run in a container."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.errors import BuildError
from imagebuilder.fetch import locked
from imagebuilder.host.site import detect
from imagebuilder.layers import project
from imagebuilder.layers.package import build_package_wheel
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import PackageLayer, WheelLayer
from imagebuilder.store import Store
from tests.integration.conftest import ROOT
from tests.support import elsewhere
from tests.support.answers import built_image

BUILD = """
import pickle, sys
from pathlib import Path
from imagebuilder.layers.package import build_package_wheel
from imagebuilder.store import Store
layer, source, files, root = pickle.loads(Path(sys.argv[1]).read_bytes())
record = build_package_wheel(layer, source, files, Store(root))
Path(sys.argv[2]).write_bytes(pickle.dumps(record.digest))
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "trainer"
version = "1.0"
"""
# It writes down all that could differ between two hosts.
BACKEND = """
import os, socket, sys, time, zipfile
from pathlib import Path

def build_wheel(folder, settings=None, metadata=None):
    BODY
    where = sorted(str(path) for path in Path(".").rglob("*"))
    said = [os.getcwd(), sys.prefix, sys.executable, socket.gethostname(), os.getuid(), os.umask(0o22),
            sorted(os.environ.items()), sys.path, where, os.listdir("/"), [os.stat(x).st_mode for x in where],
            hash("seed"), time.tzname, os.listdir("/sys/class/net")]
    name = "trainer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for path, text in {
            "trainer.py": f"said = {said!r}\\n",
            "trainer-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: trainer\\nVersion: 1.0\\n",
            "trainer-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\n",
            "trainer-1.0.dist-info/RECORD": "",
        }.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return name
"""
RECIPE = """
name: own-package
base: debian:trixie
python: "3.13"
pins:
  openmpi: "5.0.7"
ssh: {port: 2222, user: trainer}
pip: ["mpi4py==4.1.1", "numpy"]
project: {from: .., extras: [train]}
"""
SETUPTOOLS = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "trainer"
version = "1.0"
dependencies = ["numpy"]
optional-dependencies = {train = ["tabulate"]}
[project.scripts]
train = "trainer:main"
"""


@pytest.fixture(scope="module")
def lock() -> Lock:
    return lockfile.read(ROOT / "recipes" / "cpu-mpi.lock").sections[0]


@pytest.fixture(scope="module")
def files(lock: Lock, store: Store) -> dict[str, Path]:
    """The packages of the image's Python, as files."""
    layer = planned(lock, ROOT / "bench", "")
    missing = locked.absent(layer.packages, store)
    done = {"advance": lambda _sha256, _count: None, "finished": lambda _sha256: None}
    locked.fetch(missing, lock, store, detect(), **done)  # type: ignore[arg-type]
    return {deb.sha256: store.download(deb.sha256) for deb in layer.packages}


def planned(lock: Lock, source: Path, checksum: str) -> PackageLayer:
    python = ("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib")
    names = (*python, "libc6", "libexpat1", "zlib1g")
    return PackageLayer(
        name="trainer",
        source=source.name,
        checksum=checksum,
        requirements=WheelLayer(component="build", wheels=(), python="3.13", venv="/build/venv"),
        python="3.13",
        packages=tuple(deb for deb in lock.debs if deb.name in names),
        below=(),
        architecture="amd64",
    )


def package(folder: Path, body: str = "pass") -> Path:
    (source := folder / "source").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "backend.py").write_text(BACKEND.replace("BODY", body))
    return source


def test_a_backend_makes_the_same_wheel_elsewhere(lock: Lock, files: dict[str, Path], tmp_path: Path) -> None:
    source, theirs = package(tmp_path / "here"), package(tmp_path / "work" / "there")
    (theirs / "backend.py").chmod(0o600)
    layer = planned(lock, source, project.read(source).checksum)
    assert project.read(theirs).checksum == layer.checksum
    work = tmp_path / "work"
    (work / "asked").write_bytes(pickle.dumps((layer, theirs, files, work / "store")))
    (home := tmp_path / "elsewhere").mkdir()
    command = elsewhere.command(home, sys.executable, "-c", BUILD, work / "asked", work / "made")
    elsewhere.give(work)
    process.run(command, timeout=300)
    record = build_package_wheel(layer, source, files, Store(tmp_path / "store"))
    assert pickle.loads((work / "made").read_bytes()) == record.digest  # noqa: S301  (written above)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('socket.create_connection(("127.0.0.1", 80), 5)', "OSError"),
        ('open("/etc/hostname")', "FileNotFoundError: [Errno 2] No such file or directory: '/etc/hostname'"),
        ('os.symlink("/etc/shadow", "/build/product.whl"); os._exit(0)', "left no wheel of at most 1 GiB"),
        ("raise SystemExit('no version: is there a .git?')", "no version: is there a .git?"),
    ],
)
def test_a_backend_gets_nothing_of_this_host(
    body: str, said: str, lock: Lock, files: dict[str, Path], tmp_path: Path
) -> None:
    source = package(tmp_path, body)
    layer = planned(lock, source, project.read(source).checksum)
    with pytest.raises(BuildError) as caught:
        build_package_wheel(layer, source, files, Store(tmp_path / "store"))
    assert str(caught.value).startswith(f"{source}: the ")
    assert said in str(caught.value)


def test_a_package_is_built_into_its_own_layer_and_runs(
    engine: DockerClient, store: Store, tmp_path: Path
) -> None:
    program = Path(sys.executable).parent / "imagebuilder"
    (recipes := tmp_path / "recipes").mkdir()
    (tmp_path / ".dockerignore").write_text("recipes\n")
    (tmp_path / "pyproject.toml").write_text(SETUPTOOLS)
    module = tmp_path / "trainer.py"
    module.write_text("import numpy, tabulate\n\ndef main(): print('trains with', numpy.__name__)\n")
    (path := recipes / "own.yaml").write_text(RECIPE)
    text = (ROOT / "recipes" / "cpu-mpi.lock").read_text()
    path.with_suffix(".lock").write_text(text.replace('"recipe": "cpu-mpi"', '"recipe": "own-package"'))
    process.run([program, "lock", path, "--store", store.root], timeout=300)
    build: list[str | Path] = [program, "build", path, "--json", "--progress", "lines"]
    build += ["--store", store.root]
    first = built_image(process.run([*build, "--load"], timeout=900).stdout)
    said = engine.containers.run(first["reference"], ["train"], remove=True)
    assert said.decode().strip() == "trains with numpy"
    module.write_text(f"{module.read_text()}# a changed line\n")
    second = built_image(process.run(build, timeout=300).stdout)
    assert second["digest"] != first["digest"]
    assert (second["layers_made"], second["tag"]) == (1, first["tag"])
