"""Manifests that `launch` writes, run by containers that play the pods; tests/soak has the other targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Built
from tests.support.manifest_runs import ran
from tests.support.pods import SCRIPTS

FIT = ("python", f"{SCRIPTS}/mpi_regression.py")


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        ("jobset", "fit-first-0-0 fit-other-0-0"),
        ("trainjob", "fit-launcher-0-0 fit-node-0-0"),
    ],
)
def test_an_mpi_program_runs_to_its_end(target: str, hosts: str, built: Built, tmp_path: Path) -> None:
    log = ran(built(ROOT / "recipes" / "cpu-mpi.yaml"), target, tmp_path, "same True", *FIT)
    assert f"ranks 2 on {hosts} | rate 0.01 | y = 2.217 x + -1.965 | same True\n" in log
