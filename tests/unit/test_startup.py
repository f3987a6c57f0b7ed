"""What a command loads that has nothing to do: neither what fetches, nor what makes layers or Dockerfiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from imagebuilder import cli
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.store import Store
from imagebuilder.workflow import read_plan
from tests.support import proven

# Half of the time of a build with nothing to make went into these.
HEAVY = (
    "docker",
    "http.client",
    "imagebuilder.engines.steps",
    "imagebuilder.fetch.locked",
    "jinja2",
    "packageurl",
    "requests",
    "urllib3",
)
# What some of the verbs need that only read.
COMPARING = "imagebuilder.image.diff"
# Runs the command line as it is, and tells afterwards which of the modules there are.
SCRIPT = """
import json, sys
from imagebuilder.cli import main
heavy = sys.argv.pop().split()
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code, "loaded": [name for name in heavy if name in sys.modules]}))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A copy, for a build adds what it learns to the lock."""
    path = tmp_path / "cpu-mpi.yaml"
    shutil.copy(proven.RECIPE, path)
    # Without what the shipped lock knows of its layers: those of these tests hold nothing.
    lockfile.write(lockfile.read(locks.path_for(proven.RECIPE)).plain, locks.path_for(path))
    return path


def loaded(*words: str | Path) -> tuple[str, list[str]]:
    """Run a command that succeeds; what it said, and which heavy modules it loaded."""
    argv = (sys.executable, "-c", SCRIPT, *words, " ".join((*HEAVY, COMPARING)))
    run = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
    *said, last = run.stdout.splitlines()
    found = json.loads(last)
    assert found["code"] == 0, run.stderr
    return "\n".join(said), found["loaded"]


def test_a_build_with_nothing_to_make_loads_nothing_that_makes(recipe: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image = proven.put_built(read_plan(recipe)[1], store)
    said, found = loaded("build", recipe, "--store", store.root, "--tools", "host", "--progress", "lines")
    assert "(0 made," in said
    assert image.manifest in said
    assert found == []


@pytest.mark.parametrize("verb", ["check", "plan"])
def test_what_only_reads_loads_nothing_that_fetches(recipe: Path, verb: str) -> None:
    assert set(loaded(verb, recipe)[1]) <= {COMPARING}


def test_help_loads_no_models() -> None:
    argv = (sys.executable, "-c", SCRIPT, "--help", "pydantic yaml")
    run = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
    assert json.loads(run.stdout.splitlines()[-1]) == {"code": 0, "loaded": []}


def test_python_seldom_looks_for_garbage_in_a_command() -> None:
    script = "import gc, imagebuilder.cli; print(gc.get_threshold()[0])"
    run = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, check=True, text=True, timeout=60
    )
    assert int(run.stdout) > 10_000


def test_what_needs_a_heavy_module_is_seen_to_load_it(recipe: Path) -> None:
    assert "jinja2" in loaded("render", recipe)[1]


def test_for_each_verb_there_is_that_verb_alone_as_it_is_among_all() -> None:
    whole: Any = typer.main.get_command(cli.app)
    assert len(whole.commands) > 1
    for name in set(whole.commands) - {"cache", "catalog"}:
        one: Any = typer.main.get_command(cli.application([name]))
        assert list(one.commands) == [name]
        options = [[parameter.opts for parameter in group.commands[name].params] for group in (one, whole)]
        assert options[0] == options[1]


@pytest.mark.parametrize("words", [[], ["--help"], ["-v"], ["cache"], ["catalog"], ["buld"]])
def test_without_a_verb_there_are_all(words: list[str]) -> None:
    assert cli.application(words) is cli.app
