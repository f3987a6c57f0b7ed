"""Completion in the shell: the real command line, asked as bash asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuilder import catalog
from imagebuilder.cli import completion
from imagebuilder.launch import targets
from imagebuilder.smoke import checks

ROOT = Path(__file__).parents[2]


def completed(words: str, folder: Path) -> list[str]:
    """Return what bash offers for the last word."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_IMAGEBUILDER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    script = "import sys; sys.argv[0] = 'imagebuilder'; from imagebuilder.cli import main; main()"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs_and_recipes_are_completed(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    for name in ("mine.yaml", "mine.lock", ".mine.yaml", "recipes/main.yaml"):
        (tmp_path / name).touch()
    assert completed("imagebuilder smok", tmp_path) == ["smoke-test"]
    assert completed("imagebuilder build m", tmp_path) == ["mine.yaml"]
    assert completed("imagebuilder build re", tmp_path) == ["recipes/", "recipes/main.yaml"]
    assert completed("imagebuilder push recipes/m", tmp_path) == ["recipes/main.yaml"]
    assert completed("imagebuilder build nowhere/x", tmp_path) == []


def test_what_is_completed_is_what_the_program_has() -> None:
    assert completion.check("") == sorted(check.name for check in checks.load())
    assert completion.check("nccl") == ["nccl-tests"]
    assert completion.component("") == sorted(f"{name}=" for name in catalog.names())
    assert completion.target("slu") == ["slurm"]
    assert completion.target("") == sorted(targets.names())
    assert completion.shipped("cpu") == ["cpu-mpi"]


def test_an_error_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_folder: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "scandir", fail)
    assert completion.recipe("x") == []
