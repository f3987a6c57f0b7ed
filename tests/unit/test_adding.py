"""A component, a framework and a check are added by adding their files: no other file changes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import catalog
from imagebuilder.core import process
from imagebuilder.launch import targets
from imagebuilder.smoke.run import CHECKS

ROOT = Path(__file__).resolve().parents[2]
ADDED = ROOT / "tests" / "cases" / "house"
# Asks the package for what it has, and runs the new check with the new framework on two nodes.
SCRIPT = """
import json, sys
from types import SimpleNamespace as Some
from imagebuilder import catalog
from imagebuilder.launch import targets
from imagebuilder.plan.config import version
from imagebuilder.smoke import data, run, verdict
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget

data.digits = run.digits = lambda store, site: None
options = SmokeOptions(runtime="process", mode="cpu", only=frozenset({"greeting"}))
target = SmokeTarget(reference="x", recipe="x", lock="", pins=(("toytrain", "3.4.5"),))
report = run.run_smoke(target, options, store=None, site=None)
print(json.dumps({
    "names": sorted(catalog.names()),
    "targets": {name: targets.load(name).header.run for name in targets.names()},
    "frameworks": list(catalog.frameworks()),
    "checks": [check.name for check in run.CHECKS],
    "tag": version(
        Some(components=catalog.load()),
        Some(pins={"toytrain": "3.4.5"}, python="3.13", base="debian:trixie"),
    ),
    "digits": data.are_needed({"toytrain": "3.4.5"}),
    "required": sorted(verdict.required("process", "cpu", {"toytrain": "3.4.5"})),
    "reports": {check.name: [check.status, check.reason or check.summary] for check in report.checks},
    "findings": [finding.message for check in report.checks for finding in check.findings],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's parts that the generated pages come from, with the added files."""
    place = tmp_path_factory.mktemp("repository")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("bin", "docs/reference", "imagebuilder", "recipes"):
        shutil.copytree(ROOT / name, place / name, ignore=unwanted)
    shutil.copytree(ADDED, place, ignore=unwanted, dirs_exist_ok=True)
    return place


def run_there(copy: Path, *words: str | Path) -> str:
    env = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return process.run((sys.executable, *words), timeout=60, env=env, cwd=copy).stdout


@pytest.fixture(scope="module")
def found(copy: Path) -> Any:
    return json.loads(run_there(copy, "-c", SCRIPT))


def test_the_added_files_replace_none() -> None:
    added = [path.relative_to(ADDED) for path in ADDED.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [path for path in added if path.name != "README.md" and (ROOT / path).exists()] == []


def test_a_component_is_one_file(found: Any) -> None:
    assert set(found["names"]) == catalog.names() | {"hwloc", "toytrain"}


def test_a_target_is_one_file(found: Any) -> None:
    assert set(found["targets"]) == {*targets.names(), "plain"}
    assert found["targets"]["plain"] == "sh run.sh"


def test_a_check_has_its_place_among_the_others(found: Any) -> None:
    before = [check.name for check in CHECKS if check.order < 135]
    after = [check.name for check in CHECKS if check.order > 135]
    assert found["checks"] == [*before, "greeting", *after]


def test_a_framework_has_its_word_data_and_checks(found: Any) -> None:
    assert found["frameworks"] == sorted([*catalog.frameworks(), "toytrain"])
    assert (found["tag"], found["digits"]) == ("toy3.4-py3.13-trixie", True)
    assert found["required"] == ["clock", "disk", "greeting", "limits", "link", "pins", "training"]


def test_the_check_runs_with_the_framework(found: Any) -> None:
    assert found["findings"] == []
    reports = found["reports"]
    assert reports.pop("greeting") == ["passed", "2 ranks have all greetings"]
    assert {tuple(said) for said in reports.values()} == {("skipped", "not asked for")}


def test_the_pages_of_the_reference_tell_of_them(copy: Path) -> None:
    run_there(copy, "bin/generate_docs.py")
    pages = {path.name: path.read_text(encoding="utf-8") for path in (copy / "docs/reference").glob("*.md")}
    assert "\n## hwloc\n\nhwloc, the map of a host for MPI.\n" in pages["catalog.md"]
    assert "the smoke test's `greeting`, `training` run with it" in pages["catalog.md"]
    assert "- [`toytrain`](catalog.md#toytrain): a library that trains nothing" in pages["recipe.md"]
    assert "every rank has one of each rank" in pages["checks.md"]
