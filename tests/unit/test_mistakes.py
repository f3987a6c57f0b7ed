"""What people get wrong: docs/how-to/mistakes.md has each message, and its advice, when followed, works."""

from __future__ import annotations

import base64
import errno
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.core import installation
from imagebuilder.errors import ImagebuilderError
from imagebuilder.host import engine
from imagebuilder.lock import file as lockfile
from imagebuilder.smoke import engine as smoke_engine
from imagebuilder.store import Store
from imagebuilder.store import files as store_files
from imagebuilder.workflow import read_plan
from tests.support import proven
from tests.support.fake_registry import FakeRegistry, serve
from tests.unit.test_wrong_combinations import CASES as CONFLICTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "mistakes.md"
RECIPES = ROOT / "recipes"
PINS = """\
  cuda: "12.8"
  torch: "2.10.0"
  gcc: "14\""""
RIGHT = f"""\
name: train
base: debian:trixie
python: "3.13"
pins:
{PINS}
ssh: {{port: 22, user: root}}
pip: ["numpy"]
"""
CHECK = ("check", "train.yaml")
_COMPOSE = ("--target", "compose", "--output", "job", "--repository", "registry.example/team/cpu-mpi")
_FOLDER = store_files.folder


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A wrong line of the recipe, and what the advice gives: the right recipe's own line, or another one."""

    line: str
    wrong: str
    right: str | None = None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A wrong command, and the one that the advice gives; None where only the host can follow it."""

    argv: tuple[str, ...]
    then: tuple[str, ...] | None = None
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda _: None
    remedy: Callable[[pytest.MonkeyPatch], None] = lambda _: None


def _env(**words: str) -> Callable[[pytest.MonkeyPatch], None]:
    def change(patch: pytest.MonkeyPatch) -> None:
        for name in ("DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONTEXT"):
            patch.delenv(name, raising=False)
        for name, value in words.items():
            patch.setenv(name, value)

    return change


def _lock_of(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Copy the lock of a shipped recipe to that of cpu-mpi.yaml, a copy of a shipped recipe."""

    def copy(_: pytest.MonkeyPatch) -> None:
        shutil.copy(RECIPES / "cpu-mpi.yaml", "cpu-mpi.yaml")
        shutil.copy(RECIPES / f"{name}.lock", "cpu-mpi.lock")

    return copy


def _closed_socket(patch: pytest.MonkeyPatch) -> None:
    """Give the engine's socket to another group; root may use every socket, so the answer is the test's."""
    Path("docker.sock").touch()
    patch.setattr(engine, "_open", lambda _: (_ for _ in ()).throw(PermissionError()))
    patch.setenv("DOCKER_HOST", "unix://docker.sock")
    allowed = os.access
    patch.setattr(os, "access", lambda path, mode: path != "docker.sock" and allowed(path, mode))


def _built(_: pytest.MonkeyPatch) -> None:
    """Build cpu-mpi, as far as the store can tell."""
    shutil.copy(RECIPES / "cpu-mpi.yaml", ".")
    lockfile.write(lockfile.read(RECIPES / "cpu-mpi.lock").plain, Path("cpu-mpi.lock"))
    proven.put_built(read_plan(Path("cpu-mpi.yaml"))[1], Store(Path("store")))


def _built_and_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """Build it, and answer for an engine that has no image."""
    _built(patch)

    def absent(name: str) -> None:
        raise ImageNotFound(name)

    client: Any = SimpleNamespace(images=SimpleNamespace(get=absent))
    found = engine.Engine(client=client, kind="docker", version="28", cores=2, memory_bytes=1 << 33)
    patch.setattr(smoke_engine, "connect", lambda _: nullcontext(found))


def _full_disk(patch: pytest.MonkeyPatch) -> None:
    _built(patch)

    def full(path: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    patch.setattr(store_files, "folder", full)


def _without_libraries(patch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda name: None if name == "nacl" else real(name))
    said = installation.command("sign", recorded=None, prefix=Path(), python="python3", pip=True)
    patch.setattr(installation, "install", lambda _: said)


EDITS = {
    "A pin without indentation": Edit(line='  gcc: "14"', wrong='gcc: "14"'),
    "A pin with one space more than the others": Edit(line='  gcc: "14"', wrong='   gcc: "14"'),
    "A tab": Edit(line='  gcc: "14"', wrong='\tgcc: "14"'),
    "No space after the colon": Edit(line=PINS, wrong='  gcc:"14"', right='  gcc: "14"'),
    "Pins as a list": Edit(line=PINS, wrong='  - gcc: "14"', right='  gcc: "14"'),
    "A bracket that is not closed": Edit(
        line="ssh: {port: 22, user: root}", wrong="ssh: {port: 22, user: root"
    ),
    "A version without quotes": Edit(
        line='  torch: "2.10.0"', wrong="  torch: 2.10", right='  torch: "2.10"'
    ),
    "A version as pip writes it": Edit(line='  torch: "2.10.0"', wrong='  torch: "==2.10.0"'),
    "A package under `pins:`": Edit(
        line='  gcc: "14"\nssh: {port: 22, user: root}\npip: ["numpy"]',
        wrong='  torchvision: "0.25.0"',
        right='pip: ["torchvision==0.25.0"]',
    ),
    "A misspelt pin": Edit(line='  cuda: "12.8"', wrong='  cuad: "12.8"'),
    "A key given twice": Edit(
        line='pip: ["numpy"]', wrong='pip: ["numpy"]\npip: ["pandas"]', right='pip: ["numpy", "pandas"]'
    ),
    "A text where a list belongs": Edit(
        line='pip: ["numpy"]', wrong="pip: numpy, pandas", right='pip: ["numpy", "pandas"]'
    ),
    "One `=` in a requirement": Edit(
        line='pip: ["numpy"]', wrong='pip: ["numpy=2.1"]', right='pip: ["numpy==2.1"]'
    ),
    "A requirement file under `pip:`": Edit(
        line='pip: ["numpy"]',
        wrong='pip: ["-r requirements.txt"]',
        right='requirements: ["requirements.txt"]',
    ),
    "The project's name instead of the package's": Edit(
        line='pip: ["numpy"]', wrong='pip: ["pytorch"]', right=""
    ),
    "A name with capital letters": Edit(line="name: train", wrong="name: My_Train", right="name: my-train"),
    "A release's number": Edit(line="base: debian:trixie", wrong="base: debian:13"),
    "No Python": Edit(line='python: "3.13"', wrong=""),
    "`ssh: true`": Edit(line="ssh: {port: 22, user: root}", wrong="ssh: true"),
    "Another user on port 22": Edit(
        line="ssh: {port: 22, user: root}",
        wrong="ssh: {port: 22, user: me}",
        right="ssh: {port: 2222, user: me}",
    ),
    "Variables as a list": Edit(line='pip: ["numpy"]', wrong='env: ["BATCH=32"]', right='env: {BATCH: "32"}'),
    "A job's setting in the image": Edit(
        line='pip: ["numpy"]',
        wrong="env: {NCCL_DEBUG: INFO}",
        right="env: {NCCL_DEBUG: INFO}\nallow_env: [{name: NCCL_DEBUG, reason: all our jobs are debugged}]",
    ),
    "A platform's other name": Edit(
        line='pip: ["numpy"]', wrong="platforms: [x86_64]", right="platforms: [linux/amd64]"
    ),
    "A driver's branch instead of its version": Edit(
        line='pip: ["numpy"]', wrong='hosts: {driver: "535"}', right='hosts: {driver: "570.26"}'
    ),
    "Hosts with a driver that is too old": Edit(
        line='pip: ["numpy"]', wrong='hosts: {driver: "535.183.06"}', right='hosts: {driver: "570.26"}'
    ),
}
CALLS = {
    "The recipe's name instead of its file": Call(argv=("check", "train"), then=CHECK),
    "A folder": Call(argv=("check", "."), then=CHECK),
    "An image's name instead of a recipe": Call(argv=("check", "other:torch2.10.0"), then=CHECK),
    "No lock": Call(
        argv=("check", "--locked", "train.yaml"),
        then=("check", "--locked", "cpu-mpi.yaml"),
        remedy=_lock_of("cpu-mpi"),
    ),
    "The lock of another recipe": Call(
        argv=("check", "cpu-mpi.yaml"),
        then=("check", "cpu-mpi.yaml"),
        prepare=_lock_of("cuda12-torch"),
        remedy=_lock_of("cpu-mpi"),
    ),
    "A misspelt platform": Call(argv=("build", "train.yaml", "--platform", "linux/amd46")),
    "A recipe where an image belongs": Call(argv=("verify", "train.yaml")),
    "Capital letters in a repository": Call(argv=("push", "train.yaml", "registry.example/Team/train")),
    "An address with a scheme": Call(argv=("push", "train.yaml", "https://registry.example/team/train")),
    "A registry that does not run": Call(argv=("inspect", "127.0.0.1:1/team/train:1")),
    "No target for a job": Call(argv=("launch", "train.yaml", "--", "python", "train.py")),
    "No engine": Call(argv=("smoke-test", "x:1"), prepare=_env(DOCKER_HOST="unix:///none.sock")),
    "An engine's address without its kind": Call(
        argv=("smoke-test", "x:1"), prepare=_env(DOCKER_HOST="localhost:2375")
    ),
    "A misspelt context": Call(argv=("smoke-test", "x:1"), prepare=_env(DOCKER_CONTEXT="defualt")),
    "No right to use Docker": Call(argv=("smoke-test", "x:1"), prepare=_closed_socket),
    "An image that was built without `--load`": Call(
        argv=("smoke-test", "cpu-mpi:openmpi5.0.7-py3.13-trixie"), prepare=_built_and_not_loaded
    ),
    "A port that is already used": Call(
        argv=("launch", "cpu-mpi", *_COMPOSE, "--port", "2222", "--", "true"),
        then=("launch", "cpu-mpi", *_COMPOSE, "--port", "29500", "--", "true"),
        prepare=_built,
    ),
    "A full disk": Call(
        argv=("build", "cpu-mpi.yaml", "--progress", "lines"),
        then=("cache", "prune", "--keep", "20GB"),
        prepare=_full_disk,
        remedy=lambda patch: patch.setattr(store_files, "folder", _FOLDER),
    ),
    "No extra for signatures": Call(
        argv=("verify", "127.0.0.1:1/team/train:1", "--key", "my.pub"), prepare=_without_libraries
    ),
    "`init` in a folder with a recipe": Call(
        argv=("init", ".", "--recipe", "cpu-mpi"),
        then=("init", ".", "--recipe", "cpu-mpi", "--force"),
        prepare=_lock_of("cpu-mpi"),
    ),
    "A misspelt shipped recipe": Call(
        argv=("init", "new", "--recipe", "cpu-mip"), then=("init", "new", "--recipe", "cpu-mpi")
    ),
}
# Refused by `lock`; their texts are of tests/cases/conflicts, by file name.
LOCKS = {
    "A version that does not exist": "torch-unknown",
    "Another NCCL than torch's": "nccl-newer-than-torch",
    "A Python that the base does not have": "torch-and-python-too-new",
    "A torch without wheels for this Python": "torch-without-this-python",
    "Another CUDA, and the other pins as before": "cuda-13-pins-of-12",
    "A gcc that the base does not have": "gcc-not-in-suite",
}


def rows() -> Iterator[tuple[str, str, str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)][1:-1]
        if len(cells) == 3 and not cells[0].startswith(("---", "mistake")):
            yield cells[0], cells[1], cells[2]


SAID = {title: (message, advice) for title, message, advice in rows()}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IMAGEBUILDER_STORE", str(tmp_path / "store"))
    _env()(monkeypatch)
    Path("train.yaml").write_text(RIGHT)
    Path("requirements.txt").write_text("numpy\n")


def refused(argv: tuple[str, ...]) -> tuple[str, str]:
    """Run a wrong command; returns the message and the advice, with one problem alone."""
    result = CliRunner().invoke(app, argv)
    text = result.output
    if isinstance(result.exception, ImagebuilderError):
        text = str(result.exception)
    text = text.replace(f"{Path.cwd()}/", "")
    lines = [line.removeprefix("error: ") for line in text.splitlines()]
    assert result.exit_code != 0, text
    assert len(lines) == 2, text
    # The catalog's list is as long as the catalog.
    return lines[0], re.sub(r"(?<=components: ).+", "…", lines[1].removeprefix("  -> "))


def works(argv: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, f"{result.output}{result.exception}"


@pytest.mark.parametrize("title", EDITS)
def test_a_wrong_line_is_answered_and_the_advice_works(title: str) -> None:
    edit = EDITS[title]
    assert RIGHT.count(edit.line) == 1
    Path("train.yaml").write_text(RIGHT.replace(edit.line, edit.wrong))
    assert refused(CHECK) == SAID[title]
    Path("train.yaml").write_text(RIGHT.replace(edit.line, edit.line if edit.right is None else edit.right))
    works(CHECK)


@pytest.mark.parametrize("title", CALLS)
def test_a_wrong_command_is_answered_and_the_advice_works(
    title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CALLS[title]
    call.prepare(monkeypatch)
    assert refused(call.argv) == SAID[title]
    if call.then:
        call.remedy(monkeypatch)
        works(call.then)


def test_a_login_that_has_expired_is_answered_and_a_new_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(FakeRegistry(auth="basic")) as registry:
        argv = ("inspect", f"{registry.host}/team/train:1")
        monkeypatch.setenv("DOCKER_CONFIG", str(Path.cwd()))
        for password, login in (("old", "refused"), ("secret", "taken")):
            known = base64.b64encode(f"alice:{password}".encode()).decode()
            Path("config.json").write_text(json.dumps({"auths": {registry.host: {"auth": known}}}))
            said = tuple(text.replace(registry.host, "registry.example") for text in refused(argv))
            # The registry takes the new login, and has no such image.
            assert (said == SAID["A login that has expired"]) == (login == "refused")
            assert ("no such image" in said[0]) == (login == "taken")


@pytest.mark.parametrize("title", LOCKS)
def test_the_page_says_what_lock_says(title: str) -> None:
    text = (CONFLICTS / f"{LOCKS[title]}.txt").read_text(encoding="utf-8")
    message, advice = text.splitlines()[-2:]
    assert (message.replace(LOCKS[title], "train"), advice.removeprefix("  -> ")) == SAID[title]


def test_every_row_of_the_page_is_tested() -> None:
    assert set(SAID) == {*EDITS, *CALLS, *LOCKS, "A login that has expired"}
    assert len(SAID) >= 40


def test_recipes_of_one_name_are_named_together() -> None:
    Path("other.yaml").write_text(RIGHT)
    result = CliRunner().invoke(app, ["check", "train.yaml", "other.yaml"])
    assert result.exit_code == 0
    assert "other.yaml: its name `train` is also that of train.yaml: the later build" in result.output
