"""The smoke test elsewhere than in two containers of one rank each, on Docker: Podman, and more ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke.report import CheckResult, read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support.servers import podman

PROGRAM = Path(sys.executable).parent / "imagebuilder"


def smoke_test(recipe: str, report: Path, store: Store, *words: str) -> dict[str, CheckResult]:
    """Run the program; what each check came to, by name."""
    command = (PROGRAM, "smoke-test", ROOT / "recipes" / recipe, "--mode", "cpu", "--store", store.root)
    result = process.run((*command, "--report", report, *words), timeout=900, check=False)
    assert report.exists(), result.stderr
    return {check.name: check for check in read(report).checks}


def test_podman_proves_an_image_and_keeps_nothing(
    built: Built, store: Store, short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ROOT / "recipes" / "cpu-mpi.yaml"
    assert built(recipe)
    (short_folder / "podman-smoke").mkdir()
    with podman(short_folder / "podman-smoke") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        checks = smoke_test(recipe.name, tmp_path / "report.json", store, "--runtime", "podman")
        with engines.connect("podman") as engine:
            assert engine.client.containers.list(all=True) == []
            assert engine.client.volumes.list() == []
            assert [n.name for n in engine.client.networks.list() if "smoke" in str(n.name)] == []
    assert {name for name, check in checks.items() if check.status == "failed"} == set()
    assert {name for name, check in checks.items() if check.required} == {
        name for name, check in checks.items() if check.status == "passed"
    }
    assert read(tmp_path / "report.json").runtime == "podman"


def test_two_ranks_on_each_node_are_one_job_and_layouts_are_timed(
    built: Built, store: Store, tmp_path: Path
) -> None:
    assert built(ROOT / "recipes" / "cuda12-torch.yaml")
    chosen = [word for name in ("mpirun", "replicas", "scaling") for word in ("--check", name)]
    options = ("--nproc-per-node", "2", "--scaling", "--workload", "resnet", *chosen)
    checks = smoke_test("cuda12-torch.yaml", tmp_path / "report.json", store, *options)
    assert read(tmp_path / "report.json").nproc_per_node == 2
    assert [checks[name].status for name in ("mpirun", "replicas", "scaling")] == ["passed"] * 3
    ranks = checks["mpirun"].evidence["ranks"]
    assert [(rank["rank"], rank["world_size"], rank["host"]) for rank in ranks] == [
        (0, 4, "node0"),
        (1, 4, "node0"),
        (2, 4, "node1"),
        (3, 4, "node1"),
    ]
    rows = checks["scaling"].evidence["rows"]
    assert [(row["nodes"], row["processes"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        numbers = [
            row[key] for key in ("epoch_seconds", "samples_per_second", "speedup", "efficiency", "loss")
        ]
        assert all(number is None for number in numbers) if row["reason"] else all(n > 0 for n in numbers)
    assert not rows[0]["reason"]
    # The order of additions is the same wherever two ranks are.
    pairs = [row["replica"] for row in rows[1:3] if not row["reason"]]
    assert len(set(pairs)) <= 1
