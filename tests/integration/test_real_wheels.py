"""Real wheels, spliced, against what pip makes of the same files; and pip at work on what was spliced."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest

from imagebuilder.core.process import run
from imagebuilder.layers.wheels.collisions import check_collisions
from imagebuilder.store import Store
from tests.support.wheels import Unpacked, splice, unpack

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
VENV = "opt/venv"
SITE = f"{VENV}/lib/python{PYTHON}/site-packages"
# Libraries and commands, extension modules, many pure files, a program in .data/scripts, files in .data/data.
WHEELS = ("numpy", "mpi4py", "tensorboard", "ninja", "jupyterlab-widgets")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    run([*pip, "-d", folder, *WHEELS], timeout=300)
    found = tuple(sorted(folder.glob("*.whl")))
    assert len(found) == len(WHEELS)
    return found


@pytest.fixture(scope="module")
def layer(wheels: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Unpacked]:
    store = Store(tmp_path_factory.mktemp("store"))
    return unpack(splice(wheels, store, python=PYTHON), store)


def new_venv(folder: Path) -> Path:
    run([sys.executable, "-m", "venv", folder], timeout=120)
    return folder


def pip_installed(venv: Path, wheels: tuple[Path, ...]) -> dict[str, Path]:
    """Install with pip: path as in a layer, and file, of everything that came."""
    before = set(venv.rglob("*"))
    run(
        [venv / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-compile", *wheels], timeout=300
    )
    files = (path for path in venv.rglob("*") if path.is_file() and path not in before)
    # lib64 is a link to lib, and rglob does not follow it.
    return {f"{VENV}/{path.relative_to(venv)}": path for path in files}


def rows(data: bytes) -> set[tuple[str, ...]]:
    return {tuple(row) for row in csv.reader(io.StringIO(data.decode()))}


def test_the_layer_is_what_pip_installs(
    wheels: tuple[Path, ...], layer: dict[str, Unpacked], tmp_path: Path
) -> None:
    venv = new_venv(tmp_path / "venv")
    expected = pip_installed(venv, wheels)
    # What pip notes about where a file came from and who asked for it.
    expected = {p: f for p, f in expected.items() if f.name not in {"direct_url.json", "REQUESTED"}}
    found = {path: entry for path, entry in layer.items() if entry.kind == "file"}
    assert set(found) == set(expected)
    commands = set()
    for path, file in expected.items():
        data = file.read_bytes()
        if file.name == "INSTALLER":
            continue
        if file.name == "RECORD":
            ours, theirs = rows(found[path].data), rows(data)
            differ = {row[0].rpartition("/")[2] for row in ours ^ theirs}
            assert differ <= {"INSTALLER", "REQUESTED", "direct_url.json", *commands_of(expected)}
            continue
        if data.startswith(f"#!{venv}/bin/python\n".encode()):
            commands.add(file.name)
            assert found[path].data.startswith(b"#!/opt/venv/bin/python\n")
        else:
            assert found[path].data == data, path
        assert bool(found[path].mode & 0o100) == bool(file.stat().st_mode & 0o100), path
    assert {"f2py", "tensorboard"} <= commands


def commands_of(files: dict[str, Path]) -> set[str]:
    return {Path(path).name for path in files if path.startswith(f"{VENV}/bin/")}


def write_out(layer: dict[str, Unpacked], venv: Path) -> set[Path]:
    """Unpack a layer into a venv elsewhere; commands get the Python of that one."""
    written = set()
    for path, entry in layer.items():
        if not path.startswith(f"{VENV}/"):
            continue
        target = venv / path.removeprefix(f"{VENV}/")
        if entry.kind == "dir":
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(entry.data.replace(b"#!/opt/venv/bin/python", f"#!{venv}/bin/python".encode()))
            target.chmod(entry.mode)
            written.add(target)
    return written


def test_what_was_spliced_runs_and_pip_can_upgrade_and_remove_it(
    layer: dict[str, Unpacked], tmp_path: Path
) -> None:
    venv = new_venv(tmp_path / "venv")
    python = venv / "bin/python"
    written = write_out(layer, venv)
    script = "import numpy; print((numpy.arange(6.0).reshape(2, 3) @ numpy.ones((3, 1))).sum())"
    assert run([python, "-c", script], timeout=60).stdout == "15.0\n"
    assert run([venv / "bin/ninja", "--version"], timeout=60).stdout.startswith("1.")
    run([python, "-m", "pip", "install", "-q", "--no-deps", "ninja==1.11.1.1"], timeout=120)
    assert "1.11.1" in run([venv / "bin/ninja", "--version"], timeout=60).stdout
    run([python, "-m", "pip", "uninstall", "-q", "-y", *WHEELS], timeout=120)
    left = {path for path in written if path.exists()}
    assert left == set()


def test_real_wheels_do_not_collide(wheels: tuple[Path, ...]) -> None:
    check_collisions({path.name: path for path in wheels})


def test_the_same_wheels_twice_are_the_same_layer(wheels: tuple[Path, ...], tmp_path: Path) -> None:
    assert splice(wheels, Store(tmp_path / "a")) == splice(wheels, Store(tmp_path / "b"))
