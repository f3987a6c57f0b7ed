"""Jobs that prove their image: containers play the pods, and the log becomes a signed report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from docker import DockerClient

from imagebuilder.core import process
from tests.integration.conftest import ROOT, Built
from tests.integration.test_launched import PROGRAM
from tests.integration.test_prove_elsewhere import Hosts, hosts, imagebuilder, tags
from tests.support.manifest_runs import played

__all__ = ["hosts"]

END = "to read this log: imagebuilder report --from-log FILE"


def test_a_job_of_mpi_proves_itself_and_its_image_is_promoted(
    hosts: Hosts, engine: DockerClient, tmp_path: Path
) -> None:
    engine.images.pull(hosts.name)
    words = ("smoke-test", hosts.name, "--as-job", "jobset", "--mode", "cpu", "--output", tmp_path / "job")
    imagebuilder(hosts.lab, *words)
    log = played(hosts.name, tmp_path / "job", tmp_path, END)
    (hosts.lab / "job.log").write_text(log)
    own = ("--store", hosts.lab / "store")
    said = imagebuilder(hosts.lab, "report", "--from-log", "job.log", "--json", *own).stdout
    report = json.loads(said)["result"]
    failed = {check["name"]: check["findings"] for check in report["checks"] if check["status"] == "failed"}
    assert failed == {}, said
    checks = {check["name"]: check["summary"] for check in report["checks"] if check["status"] == "passed"}
    assert (report["runtime"], report["digest"], report["passed"]) == ("job", hosts.digest, True)
    assert checks["mpirun"] == "2 ranks on 2 hosts, exact sum through mpi4py"
    assert checks["ssh"] == "2 logins between nodes as trainer, host keys checked strictly"
    assert {"environment", "failure", "limits", "names", "pins"} <= checks.keys()

    # Unsigned, it proves nothing; a log of another image is not attached to this one.
    imagebuilder(hosts.lab, "report", "--from-log", "job.log", "--attach", hosts.name, *own)
    recipe = ("--recipe", "cpu-mpi.yaml")
    unsigned = imagebuilder(hosts.builder, "promote", hosts.name, *recipe, check=False)
    assert "it is not signed with lab.pub" in unsigned.stderr
    assert unsigned.code == 10
    assert len(tags(hosts)) == 1
    signing = ("--attach", hosts.name, "--sign-key", "lab.key", *own)
    imagebuilder(hosts.lab, "report", "--from-log", "job.log", *signing)
    promoted = imagebuilder(hosts.builder, "promote", hosts.name, *recipe).stdout
    assert f"promoted  {hosts.name}\n" in promoted
    assert f"proof     cpu, 2 nodes, {report['started']}, signed by lab.pub\n" in promoted


def test_a_job_of_torch_tests_itself(built: Built, tmp_path: Path) -> None:
    image = built(ROOT / "recipes" / "cuda12-torch.yaml")
    # compose takes an image by its id, so the report has no digest.
    words = ("launch", image, "--target", "compose", "--smoke", "--gpus", "0", "--output", tmp_path / "job")
    process.run((PROGRAM, *words), timeout=60)
    compose = ("docker", "compose", "--ansi", "never", "--project-directory", tmp_path / "job")
    try:
        log = process.run((*compose, "up"), timeout=400).stdout
    finally:
        process.run((*compose, "down", "--volumes"), timeout=120)
        shutil.rmtree(tmp_path / "job")
    (tmp_path / "log").write_text(log)
    result = process.run((PROGRAM, "report", "--from-log", tmp_path / "log", "--json"), timeout=60)
    report = json.loads(result.stdout)["result"]
    failed = {check["name"]: check["findings"] for check in report["checks"] if check["status"] == "failed"}
    assert failed == {}, result.stdout
    checks = {check["name"]: check["summary"] for check in report["checks"] if check["status"] == "passed"}
    assert {"pins", "rendezvous", "collectives", "failure"} <= checks.keys()
    assert report["passed"] is True
