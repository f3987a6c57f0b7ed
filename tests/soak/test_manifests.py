"""Manifests that `launch` writes, run by containers that play the pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Built
from tests.integration.test_manifests import FIT
from tests.integration.test_peers import require_learnt
from tests.support.manifest_runs import ran
from tests.support.pods import SCRIPTS

DDP = ("python", f"{SCRIPTS}/ddp_torchrun.py", "--snapshot=/tmp/snapshot.pt")
HOSTS = {
    "leaderworkerset": "fit-0 fit-0-1",
    "mpijob": "fit-worker-0 fit-worker-1",
    "volcano": "fit-first-0 fit-other-0",
}


@pytest.mark.parametrize("target", sorted(HOSTS))
def test_an_mpi_program_runs_to_its_end(target: str, built: Built, tmp_path: Path) -> None:
    log = ran(built(ROOT / "recipes" / "cpu-mpi.yaml"), target, tmp_path, "same True", *FIT)
    assert f"ranks 2 on {HOSTS[target]} | rate 0.01 | y = 2.217 x + -1.965 | same True\n" in log


@pytest.mark.parametrize("target", ["jobset", "leaderworkerset", "pytorchjob", "trainjob", "volcano"])
def test_a_ddp_program_runs_to_its_end(target: str, built: Built, tmp_path: Path) -> None:
    require_learnt(ran(built(ROOT / "recipes" / "cuda12-torch.yaml"), target, tmp_path, "saved ", *DDP))
