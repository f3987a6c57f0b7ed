"""The user's own project in an image: it runs, is the same everywhere, and a changed line is a small push."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.store import Store
from tests.integration.conftest import ROOT
from tests.support import elsewhere
from tests.support.answers import built_image, one_image
from tests.support.answers import result as result_of

PROGRAM = Path(sys.executable).parent / "imagebuilder"
# The image's user is not root, so that owners count.
COPY = """\
copy:
  - {from: ../src, to: /workspace}
  - {from: ../settings, to: /home/trainer/settings}
workdir: /workspace
command: [bash, run.sh, "$HOME"]
"""
RUN = """\
set -eu
python train.py "$1"
stat -c '%n %a %U:%G %Y' -- * ~/settings ~/settings/*
readlink latest
touch here ~/settings/here
"""


@pytest.fixture
def recipe() -> Iterator[Path]:
    """A project with odd names, modes and links, and cpu-mpi's recipe in a folder of it."""
    with tempfile.TemporaryDirectory(prefix="project-") as name:
        top = Path(name)
        (top / "recipes").mkdir()
        for path in (ROOT / "recipes").glob("cpu-mpi.*"):
            shutil.copy(path, top / "recipes")
        found = top / "recipes" / "cpu-mpi.yaml"
        found.write_text(found.read_text() + COPY)
        write_project(top)
        yield found


def write_project(top: Path) -> None:
    for folder in ("src/.git", "src/pkg", "settings"):
        (top / folder).mkdir(parents=True)
    (top / "src" / "train.py").write_text("import sys\nprint('trains', sys.argv[1])\n")
    (top / "src" / "run.sh").write_text(RUN)
    (top / "src" / "pkg" / "größe 'a' $b").write_text("odd")
    (top / "src" / ("x" * 255)).write_text("long")
    (top / "src" / "program").write_text("#!/bin/sh\n")
    (top / "src" / "program").chmod(0o700)
    (top / "src" / "latest").symlink_to("pkg")
    (top / "src" / ".git" / "config").write_text("not this")
    (top / "src" / "a.log").write_text("not this")
    (top / "src" / ".dockerignore").write_text("*.log\n")
    (top / "settings" / "lr.yaml").write_text("lr: 1\n")


def build(recipe: Path, store: Store, *options: str | Path) -> dict[str, object]:
    words = ("build", recipe, "--json", "--progress", "lines", "--store", store.root, *options)
    made: dict[str, object] = built_image(process.run([PROGRAM, *words], timeout=3000).stdout)
    return made


@pytest.fixture
def own(store: Store, tmp_path: Path) -> Store:
    """A store with the layers of the session's, whose image of this name stays as it is."""
    process.run([PROGRAM, "build", ROOT / "recipes" / "cpu-mpi.yaml", "--store", store.root], timeout=3000)
    return linked(store, tmp_path / "own")


def linked(store: Store, place: Path) -> Store:
    for name in ("blobs", "layers", "downloads"):
        shutil.copytree(
            store.root / name, place / name, copy_function=lambda one, two: Path(two).hardlink_to(one)
        )
    return Store(place)


def test_docker_run_starts_the_command_among_the_files(
    recipe: Path, own: Store, engine: DockerClient
) -> None:
    # Not the tags by which other tests know cpu-mpi.
    recipe.write_text(recipe.read_text() + "tags: [with-project]\n")
    reference = str(build(recipe, own, "--load")["reference"])
    said: bytes = engine.containers.run(reference, remove=True, environment={"IMAGEBUILDER_SSHD": "off"})
    long = "x" * 255
    assert said.decode().splitlines() == [
        "trains $HOME",
        "latest 777 trainer:root 0",
        "pkg 755 trainer:root 0",
        "program 755 trainer:root 0",
        "run.sh 644 trainer:root 0",
        "train.py 644 trainer:root 0",
        f"{long} 644 trainer:root 0",
        "/home/trainer/settings 755 trainer:root 0",
        "/home/trainer/settings/lr.yaml 644 trainer:root 0",
        "pkg",
    ]
    home: bytes = engine.containers.run(
        reference, ["stat", "-c", "%a %U", "/home/trainer", "/home"], remove=True
    )
    assert home.decode().splitlines()[-2:] == ["770 trainer", "755 root"]


def test_the_same_project_gives_the_same_digest_elsewhere(recipe: Path, store: Store, own: Store) -> None:
    here = build(recipe, own)
    assert here["layers_made"] == 2
    with tempfile.TemporaryDirectory(prefix="imagebuilder-elsewhere-") as name:
        (place := Path(name) / "place").mkdir()
        top = Path(name) / "another checkout"
        (top / "recipes").mkdir(parents=True)
        for path in recipe.parent.iterdir():
            shutil.copy(path, top / "recipes")
        write_project(top)
        for path in (top / "src").rglob("*"):
            if path.is_file():
                path.chmod(0o700 if path.name == "program" else 0o600)
        # Of all layers but these two, which the first build left in its own store.
        other = linked(store, Path(name) / "store")
        elsewhere.give(Path(name))
        words = (
            "build",
            top / "recipes" / recipe.name,
            "--json",
            "--progress",
            "lines",
            "--store",
            other.root,
        )
        result = process.run(elsewhere.command(place, PROGRAM, *words), timeout=600, cwd=place)
        there = built_image(result.stdout)
    assert (there["layers_made"], there["digest"]) == (2, here["digest"])


def test_a_changed_line_is_one_layer_and_some_kilobytes(recipe: Path, own: Store, registry: str) -> None:
    build(recipe, own)
    push = ("push", recipe, f"{registry}/project", "--untested", "--json", "--store", own.root)
    process.run([PROGRAM, *push], timeout=600)
    (recipe.parents[1] / "src" / "train.py").write_text("print('trains better')\n")
    made = build(recipe, own)
    assert (made["layers_made"], made["fetched_bytes"]) == (1, 0)
    sent = result_of(process.run([PROGRAM, *push], timeout=600).stdout)
    assert sent["digest"] == made["digest"]
    assert 0 < sent["pushed_bytes"] < 20_000


def test_a_changed_line_is_proven_by_the_checks_that_it_can_change(
    recipe: Path, own: Store, registry: str
) -> None:
    recipe.write_text(recipe.read_text() + "tags: [proven]\nchecks: {training: python train.py}\n")
    train = recipe.parents[1] / "src" / "train.py"
    train.write_text("print('imagebuilder-metric: loss=0.5')\n")
    first = build(recipe, own)
    smoke = ("smoke-test", recipe, "--mode", "cpu", "--json", "--store", own.root)
    process.run([PROGRAM, *smoke], timeout=600)
    train.write_text("print('imagebuilder-metric: loss=0.25')\n")
    build(recipe, own)
    report = result_of(process.run([PROGRAM, *smoke], timeout=600).stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert [name for name, check in checks.items() if check["reused"]] == ["failure"]
    assert checks["failure"]["reused"]["digest"] == first["digest"]
    assert checks["own-training"]["evidence"]["metrics"] == {"loss": 0.25}
    # Another machine has only what the registry has.
    target = f"{registry}/proven:proven"
    process.run([PROGRAM, "push", recipe, f"{registry}/proven", "--store", own.root], timeout=600)
    verified = process.run([PROGRAM, "verify", target, "--json"], timeout=600, check=False)
    assert verified.code == 0, verified.stdout + verified.stderr
    told = next(check for check in one_image(verified.stdout)["checks"] if check["name"] == "report")
    assert (told["status"], f"(1 of them reused from {str(first['digest'])[:19]})" in told["detail"]) == (
        "passed",
        True,
    )
    again = result_of(process.run([PROGRAM, *smoke, "--again"], timeout=600).stdout)
    assert (again["earlier"], [check for check in again["checks"] if check["reused"]]) == (None, [])
