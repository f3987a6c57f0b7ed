"""Verbs that tell programs what they did: `--json` prints one document, and nothing beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from imagebuilder import workflow
from imagebuilder.cli import app
from imagebuilder.fetch import locked
from imagebuilder.lock import file as lockfile
from imagebuilder.store import Store
from imagebuilder.workflow import LockUpdate

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "cpu-mpi.yaml"


def said(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lockfile.read(RECIPE.with_suffix(".lock"))
    current = LockUpdate(previous=made, made=made)
    monkeypatch.setattr(workflow, "update_lock", lambda *_, **__: current)
    told = said("lock", RECIPE)
    assert (told["written"], told["changes"]) == (False, [])
    first = LockUpdate(previous=None, made=made, notes=("worth knowing",))
    monkeypatch.setattr(workflow, "update_lock", lambda *_, **__: first)
    told = said("lock", RECIPE)
    assert told["written"]
    assert told["changes"]
    assert told["notes"] == ["worth knowing"]
    (platform,) = told["platforms"]
    assert platform["platform"] == "linux/amd64"
    assert platform["pins"]["openmpi"] == "5.0.7"
    assert platform["debs"] > 100


def test_update(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(tmp_path)
    side = workflow.side(str(RECIPE), store)
    moved = {"openmpi": ("5.0.6", "5.0.7")}
    monkeypatch.setattr(workflow, "update_pins", lambda *_, **__: (side, side, moved))
    told = said("update", RECIPE, "--dry-run", "--store", tmp_path)
    assert told["moved"] == {"openmpi": {"before": "5.0.6", "after": "5.0.7"}}
    assert (told["written"], told["same"]) == (False, True)


def test_fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locked, "fetch", lambda *_, **__: None)
    told = said("fetch", RECIPE, "--store", tmp_path, "--progress", "lines")
    (row,) = told["recipes"]
    assert row["fetched_bytes"] == row["bytes"] > 10**7
    assert (row["architecture"], told["store"]) == ("amd64", str(tmp_path))


def test_the_cache(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest, _ = store.put_bytes(b"blob")
    assert said("cache", "verify", "--store", tmp_path)["damages"] == []
    store.blob(digest).chmod(0o644)
    store.blob(digest).write_bytes(b"else")
    result = CliRunner().invoke(app, ["cache", "verify", "--json", "--store", str(tmp_path)])
    assert result.exit_code != 0
    (damage,) = json.loads(result.stdout)["damages"]
    assert damage["path"] == str(store.blob(digest))
    assert said("cache", "verify", "--fix", "--store", tmp_path)["removed"]
    store.put_bytes(b"blob")
    assert said("cache", "prune", "--all", "--store", tmp_path) == {"files": 1, "bytes": 4, "dry_run": False}
