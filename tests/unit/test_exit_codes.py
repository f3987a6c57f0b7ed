"""The contract of exit codes: what the page says of each verb is what the command line does."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from imagebuilder import cli, workflow
from imagebuilder.cli import smoke as smoke_verb
from imagebuilder.engines import embedded
from imagebuilder.errors import (
    BuildError,
    ConflictError,
    EnvironmentFault,
    FetchError,
    ImagebuilderError,
    RegistryError,
    StoreError,
)
from imagebuilder.smoke import checkpoints
from imagebuilder.smoke import run as smoke
from imagebuilder.smoke import target as targets
from imagebuilder.smoke.checkpoints import Comparison
from imagebuilder.smoke.report import Report
from imagebuilder.workflow import doctor
from tests.support.reports import CASES, check, report
from tests.unit.test_checkpoints import EXTRA, comparison

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")


def commands() -> Iterator[tuple[str, Any]]:
    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                yield from walk(f"{name} {word}".strip(), inner)
        else:
            yield name, command

    return walk("", typer.main.get_command(cli.app))


def contract() -> dict[str, tuple[int, ...]]:
    rows = re.findall(r"^\| `([a-z][a-z -]*)` \| (.+) \|$", PAGE.partition("## By verb")[2], re.MULTILINE)
    return {verb: tuple(int(code) for code in re.findall(r"(?:^|, )(\d+) ", codes)) for verb, codes in rows}


VERBS = tuple(name for name, _ in commands())
CONTRACT = contract()


def exit_code(*arguments: str) -> int:
    before = sys.argv
    sys.argv = ["imagebuilder", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    code = ended.value.code
    return 0 if code is None else int(code)


def test_every_verb_has_a_row_and_no_other() -> None:
    assert sorted(CONTRACT) == sorted(VERBS), "docs/reference/exit-codes.md, By verb: one row a verb"


def test_every_code_of_a_verb_is_explained_above() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    for verb, codes in CONTRACT.items():
        assert set(codes) <= explained, verb
        assert list(codes) == sorted(set(codes)), verb
        assert codes[0] == 0, verb


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_that_does_not_exist_ends_with_2(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*verb.split(), "--no-such-option") == 2
    assert "no such option" in capsys.readouterr().err.lower()


@pytest.mark.parametrize("verb", VERBS)
def test_help_ends_with_0(verb: str) -> None:
    assert exit_code(*verb.split(), "--help") == 0


# What is behind a verb is replaced where it needs an engine, a network or a registry: what it raises is what
# its own tests show; here it is what becomes of it.


@dataclass(frozen=True, kw_only=True)
class World:
    """Where a case runs: a folder with a locked recipe and one that is not, an empty store."""

    folder: Path
    patch: pytest.MonkeyPatch

    @property
    def recipe(self) -> str:
        return str(self.folder / "cpu-mpi.yaml")

    @property
    def store(self) -> tuple[str, str]:
        return ("--store", str(self.folder / "store"))

    def wrong(self) -> str:
        (self.folder / "wrong.yaml").write_text("name: [\n", encoding="utf-8")
        return str(self.folder / "wrong.yaml")

    def unlocked(self) -> str:
        (self.folder / "cpu-mpi.lock").unlink()
        return self.recipe

    def stale(self) -> str:
        path = Path(self.recipe)
        path.write_text(path.read_text(encoding="utf-8").replace("numpy", "requests"), encoding="utf-8")
        return self.recipe

    def raising(self, owner: object, name: str, error: ImagebuilderError) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        self.patch.setattr(owner, name, fail)

    def file(self, name: str = "plain") -> str:
        (self.folder / name).write_text("", encoding="utf-8")
        return str(self.folder / name)


Arguments = tuple[str, ...]
Case = Callable[[World], Arguments]


def _damaged(world: World) -> Arguments:
    blob = world.folder / "store" / "blobs" / "sha256" / ("0" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"not what its name says")
    return world.store


def _tested(world: World, result: Report | ImagebuilderError) -> Arguments:
    target = targets.SmokeTarget(reference="demo:1", recipe="demo", lock="", pins=())
    world.patch.setattr(smoke_verb, "_smoke_target", lambda *_: target)
    if isinstance(result, Report):
        world.patch.setattr(smoke, "run_smoke", lambda *_, **__: result)
    else:
        world.raising(smoke, "run_smoke", result)
    return ("demo", *world.store)


def _compared(world: World, *differences: dict[str, Any]) -> tuple[str, ...]:
    result = Comparison.model_validate_json(json.dumps(comparison(*differences)))
    world.patch.setattr(checkpoints, "compare_here", lambda *_: (result,))
    return (world.file("one.pt"), world.file("other.pt"))


CASES_OF: tuple[tuple[str, int, Case], ...] = (
    ("init", 0, lambda world: (str(world.folder / "new"),)),
    ("init", 3, lambda world: (str(world.folder), "--recipe", "cpu-mpi")),
    ("schema", 0, lambda _: ()),
    ("check", 0, lambda world: (world.recipe,)),
    ("check", 3, lambda world: (world.recipe, world.wrong())),
    ("check", 5, lambda world: (world.stale(), world.wrong())),
    ("lock", 3, lambda world: (world.wrong(),)),
    ("plan", 0, lambda world: (world.recipe,)),
    ("plan", 3, lambda world: (world.wrong(),)),
    ("plan", 5, lambda world: (world.unlocked(),)),
    ("render", 0, lambda world: (world.recipe,)),
    ("render", 3, lambda world: (world.recipe, "--output", f"{world.file()}/below")),
    ("render", 5, lambda world: (world.stale(),)),
    ("diff", 0, lambda world: (world.recipe, world.recipe, "--exit-code", *world.store)),
    (
        "diff",
        1,
        lambda world: (world.recipe, str(ROOT / "recipes/cuda12-torch.yaml"), "--exit-code", *world.store),
    ),
    ("diff", 3, lambda world: (world.recipe, world.wrong(), *world.store)),
    ("diff", 5, lambda world: (world.unlocked(), world.recipe, *world.store)),
    ("update", 3, lambda world: (world.wrong(), *world.store)),
    ("fetch", 3, lambda world: (world.wrong(), *world.store)),
    ("fetch", 5, lambda world: (world.unlocked(), *world.store)),
    ("build", 3, lambda world: (world.wrong(), *world.store)),
    ("build", 5, lambda world: (world.stale(), *world.store)),
    ("smoke-test", 3, lambda world: ("--check", "no-such-check", "--runtime", "process", *world.store)),
    ("smoke-test", 5, lambda world: (world.recipe, *world.store)),
    ("push", 3, lambda world: ("absent", "localhost:1/x", *world.store)),
    ("push", 5, lambda world: (world.recipe, "localhost:1/x", *world.store)),
    ("report", 0, lambda _: (str(CASES / "failed-cpu.json"),)),
    ("report", 3, lambda world: (world.file("empty.json"),)),
    ("report", 5, lambda world: (world.recipe, *world.store)),
    ("compare-checkpoints", 0, _compared),
    ("compare-checkpoints", 1, lambda world: _compared(world, EXTRA)),
    ("compare-checkpoints", 2, lambda world: (world.file(), str(world.folder / "absent"))),
    ("keys", 0, lambda world: (str(world.folder / "keys"),)),
    ("keys", 3, lambda world: (str(world.folder),)),
    (
        "catalog test",
        3,
        lambda world: ("absent=1", "--catalog", str(world.folder), *world.store),
    ),
    ("cache ls", 0, lambda world: world.store),
    ("cache du", 0, lambda world: world.store),
    ("cache verify", 0, lambda world: world.store),
    ("cache prune", 0, lambda world: ("--all", *world.store)),
    ("cache prune", 0, lambda world: ("--keep-recipe", world.recipe, *world.store)),
    ("cache prune", 3, lambda world: world.store),
    ("cache prune", 5, lambda world: ("--keep-recipe", world.unlocked(), *world.store)),
    ("cache prune", 3, lambda world: ("--keep", "much", *world.store)),
    ("smoke-test", 0, lambda world: _tested(world, report(check("mpirun")))),
    ("smoke-test", 1, lambda world: _tested(world, report(check("mpirun"), check("ssh", "failed")))),
    ("smoke-test", 1, lambda world: _tested(world, report(check("mpirun"), check("training", "skipped")))),
    ("smoke-test", 2, lambda world: _tested(world, EnvironmentFault("no engine"))),
    ("smoke-test", 6, lambda world: _tested(world, FetchError("no digits"))),
    ("cache verify", 8, _damaged),
)


@pytest.mark.parametrize("error", [EnvironmentFault, ConflictError, FetchError, BuildError, StoreError])
def test_what_ends_a_build_is_its_code(
    error: type[ImagebuilderError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = here(tmp_path, monkeypatch)
    world.raising(embedded, "build", error("it went wrong"))
    assert exit_code("build", world.recipe, *world.store) == error.exit_code
    assert error.exit_code in CONTRACT["build"]


@pytest.mark.parametrize("error", [ConflictError, FetchError, BuildError])
def test_what_ends_a_lock_is_its_code(
    error: type[ImagebuilderError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = here(tmp_path, monkeypatch)
    world.raising(workflow, "update_lock", error("it went wrong"))
    assert exit_code("lock", world.recipe) == error.exit_code
    assert error.exit_code in CONTRACT["lock"]


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("missing", 2)])
def test_doctor_says_whether_something_is_missing(
    status: doctor.Status, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = doctor.HostFinding(name="tools", status=status, detail="d", verbs=("build",))
    monkeypatch.setattr(doctor, "examine", lambda: (finding,))
    assert exit_code("doctor") == code
    assert code in CONTRACT["doctor"]


def here(folder: Path, patch: pytest.MonkeyPatch) -> World:
    for name in ("cpu-mpi.yaml", "cpu-mpi.lock"):
        shutil.copy(ROOT / "recipes" / name, folder)
    return World(folder=folder, patch=patch)


@pytest.mark.parametrize(
    ("verb", "code", "arguments"), CASES_OF, ids=[f"{verb}-{code}" for verb, code, _ in CASES_OF]
)
def test_a_verb_ends_as_the_page_says(
    verb: str, code: int, arguments: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = arguments(here(tmp_path, monkeypatch))
    assert exit_code(*verb.split(), *words) == code
    assert code in CONTRACT[verb]


def test_interrupted_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = here(tmp_path, monkeypatch)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workflow, "read_locks", interrupt)
    assert exit_code("plan", world.recipe) == 130


def test_a_registry_that_refuses_has_a_code_of_its_own() -> None:
    assert RegistryError.exit_code in CONTRACT["push"]
