"""The verb `build`: what it refuses before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.engines import embedded
from imagebuilder.errors import EnvironmentFault

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "cpu-mpi.yaml"


def test_load_asks_for_the_engine_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[object] = []
    monkeypatch.setattr(embedded, "build", lambda *given: built.append(given))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    result = CliRunner().invoke(app, ["build", str(RECIPE), "--load", "--store", str(tmp_path / "store")])
    assert isinstance(result.exception, EnvironmentFault)
    assert f"no container engine answers (tried unix://{tmp_path}/none.sock)" in str(result.exception)
    assert built == []
    assert not (tmp_path / "store").exists()
