"""MPI from source, on two nodes, and mpi4py against it: minutes of compiling each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder import plan as plans
from imagebuilder.core import process
from imagebuilder.plan import BuiltLayer
from imagebuilder.smoke.report import read
from imagebuilder.store import Store
from imagebuilder.workflow import read_locks, read_plan
from tests.support.answers import built_image

PROGRAM = Path(sys.executable).parent / "imagebuilder"
SECONDS = 3600
# The source of trixie's own MPICH is not on every mirror.
MPI = {"openmpi": ("debian:trixie", "3.13", "5.0.7"), "mpich": ("debian:bookworm", "3.11", "4.0.2")}


def recipe(folder: Path, mpi: str) -> Path:
    base, python, version = MPI[mpi]
    path = folder / f"compiled-{mpi}.yaml"
    path.write_text(
        f'name: compiled-{mpi}\nbase: {base}\npython: "{python}"\n'
        f'pins:\n  {mpi}: "{version}"\n  mpi4py: "4.1.1"\nbuild: [{mpi}, mpi4py]\n'
        "ssh: {port: 2222, user: trainer}\npip: [numpy]\n"
    )
    return path


@pytest.mark.parametrize("mpi", list(MPI))
def test_a_compiled_mpi_is_proven_on_two_nodes_and_comes_out_the_same_again(
    mpi: str, store: Store, engine: DockerClient, tmp_path: Path
) -> None:
    path = recipe(tmp_path, mpi)
    build = (PROGRAM, "build", path, "--load", "--json", "--progress", "lines", "--store", store.root)
    reference = built_image(process.run(build, timeout=SECONDS).stdout)["reference"]
    report = tmp_path / "report.json"
    smoke = (PROGRAM, "smoke-test", path, "--mode", "cpu", "--store", store.root, "--report", report)
    process.run(smoke, timeout=SECONDS)
    checks = {check.name: check for check in read(report).checks}
    assert checks["mpirun"].status == "passed"
    assert "through mpi4py" in checks["mpirun"].summary
    assert mpi in checks["pins"].summary

    linked = engine.containers.run(
        reference,
        ["bash", "-c", "ldd /opt/venv/lib/python3*/site-packages/mpi4py/MPI*.so"],
        remove=True,
        environment={"IMAGEBUILDER_SSHD": "off"},
    )
    assert b" /usr/local/lib/libmpi.so" in linked

    # Once more, with the layers forgotten: the same bytes.
    _, plan = read_plan(path)
    compiled = [layer for layer in plan.layers if isinstance(layer, BuiltLayer)]
    before = {layer.key: store.layer(layer.key) for layer in compiled}
    for layer in compiled:
        store.layer_path(layer.key).unlink()
    process.run(build, timeout=SECONDS)
    assert {layer.key: store.layer(layer.key) for layer in compiled} == before
    locked = read_locks(path)
    assert locked.file.sections[0].builds
    assert plans.version(locked.selection, locked.file.sections[0]).startswith(mpi)
