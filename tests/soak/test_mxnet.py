"""MXNet's KVStore: proven on two containers, and started there by its own launch.py, over ssh and mpirun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagebuilder.plan.sshkeys import make_keys
from imagebuilder.smoke.engine import Engine, look_up
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.integration.test_peers import await_sshd
from tests.support import broken
from tests.support.pods import SCRIPTS, docker, pods

FITTED = r"worker {rank} of 2 \| y = 3\.000 x \+ -2\.000"


def test_the_image_is_proven(built: Built, connected: Engine, store: Store) -> None:
    reference = built(ROOT / "recipes" / "mxnet.yaml")
    report = broken.run(None, reference, connected, store)
    assert report.passed, broken.said(report)
    assert look_up(connected, reference).pin("mxnet") == "1.9.1"
    summaries = {check.name: check.summary for check in report.checks}
    assert summaries["collectives"].startswith("allreduce exact from 4 B to 4 MiB over dist_sync")
    assert summaries["collectives"].endswith("; 2-bit compression exact")
    assert "replicas equal" in summaries["training"]


@pytest.mark.parametrize("launcher", ["ssh", "mpi"])
def test_a_script_by_mxnet_s_launcher(launcher: str, built: Built, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, name="peers")
    mount = ("-v", f"{keys}:/run/secrets/imagebuilder:ro", "-e", "OMP_NUM_THREADS=1")
    with pods(built(ROOT / "recipes" / "mxnet.yaml")) as job:
        names = [job.start(host, *mount) for host in ("first", "second")]
        for name in names:
            await_sshd(name)
        lines = "".join(f"{job.address(name)} slots=1\\n" for name in names)
        docker("exec", names[0], "sh", "-c", f"printf '{lines}' > /tmp/hosts")
        words = ("-n", "2", "-s", "1", "-H", "/tmp/hosts", "--launcher", launcher)
        script = (
            "python",
            f"{SCRIPTS}/mxnet_launch.py",
            *words,
            "python",
            f"{SCRIPTS}/kvstore_regression.py",
        )
        result = docker("exec", names[0], "timeout", "-k", "5", "60", *script)
    # The ranks are in the order in which the workers reached the scheduler.
    for rank in range(2):
        assert re.search(FITTED.format(rank=rank), result.stdout), result.stdout + result.stderr[-2000:]
