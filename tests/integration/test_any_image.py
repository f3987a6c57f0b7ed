"""The smoke test of images that imagebuilder did not build: in the engine, and in a registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.smoke.report import CheckResult, Report, read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support import otherimages
from tests.support.pods import docker

PROGRAM = Path(sys.executable).parent / "imagebuilder"
NO_FRAMEWORK = "no jax or mxnet or tensorflow or torch in this image"


@pytest.fixture(scope="module")
def openmpi(engine: DockerClient, store: Store) -> Iterator[str]:
    with (
        otherimages.minimal(engine, store) as base,
        otherimages.built(engine, otherimages.OPENMPI, base) as image,
    ):
        yield image


def smoke_test(image: str, folder: Path, store: Store, *words: str) -> tuple[Report, dict[str, CheckResult]]:
    report = folder / "report.json"
    command = (PROGRAM, "smoke-test", image, "--mode", "cpu", "--store", store.root, "--report", report)
    result = process.run((*command, *words), timeout=600, check=False)
    assert result.code == 1, result.stderr
    found = read(report)
    return found, {check.name: check for check in found.checks}


def messages(checks: dict[str, CheckResult]) -> dict[str, list[str]]:
    return {
        name: [finding.message for finding in check.findings]
        for name, check in checks.items()
        if check.status == "failed"
    }


def test_what_a_dockerfile_forgot_is_named(openmpi: str, store: Store, tmp_path: Path) -> None:
    report, checks = smoke_test(openmpi, tmp_path, store)
    failed = messages(checks)
    assert failed.keys() == {"contents", "environment", "failure", "mpirun"}
    (keys,) = failed["contents"]
    assert keys.startswith("the image holds private host keys: /etc/ssh/ssh_host_")
    assert "run as root" in failed["mpirun"][0]
    assert checks["ssh"].summary == "2 logins between nodes as root, host keys checked strictly"
    assert (checks["training"].status, checks["training"].reason) == ("skipped", NO_FRAMEWORK)
    assert (report.recipe, report.lock, report.pins) == ("", "", {})
    assert "its entrypoint was not run: /bin/sh -c 'exit 3'" in report.caveats


def test_an_image_of_a_registry_is_pulled_and_its_digest_reported(
    openmpi: str, engine: DockerClient, registry: str, tmp_path: Path
) -> None:
    with otherimages.built(engine, otherimages.TRAINER, openmpi) as image:
        name = f"{registry}/{image}"
        repository, _, tag = name.rpartition(":")
        engine.api.tag(image, repository, tag)
        said = docker("push", name).stdout
        (digest,) = re.findall(r"digest: (sha256:[0-9a-f]{64})", said)
        engine.images.remove(name)
    # Nothing that this host knows of the image is left; the digits are what a smoke test downloads anyway.
    own = Store(tmp_path / "store")
    try:
        report, checks = smoke_test(name, tmp_path, own, "--expect", "openmpi=4.0.1")
    finally:
        engine.images.remove(f"{repository}@{digest}", force=True)
    assert (report.digest, report.pins) == (digest, {"openmpi": "4.0.1"})
    assert own.report(digest).exists()
    failed = messages(checks)
    loaded = checks["pins"].evidence["openmpi"]["found"]
    assert failed["pins"] == [f"openmpi 4.0.1 is expected, but {loaded} is loaded"] * 2
    assert failed["settings"] == [
        "the image's ENV sets GLOO_SOCKET_IFNAME: it names an interface of one host"
    ]
    assert checks["mpirun"].summary == "2 ranks on 2 hosts, exact sum through mpi4py"
    assert checks["contents"].summary == (
        "Python is /usr/bin/python3, the user trainer; sshd listens on port 2222, no host key in the image"
    )


def test_what_is_built_on_top_of_an_image_is_tested_as_what_it_is(
    engine: DockerClient, built: Built, store: Store, tmp_path: Path
) -> None:
    base = built(ROOT / "recipes" / "cpu-mpi.yaml")
    with otherimages.built(engine, otherimages.FORGOTTEN_USER, base) as image:
        report, checks = smoke_test(image, tmp_path, store, "--check", "contents", "--check", "names")
    assert (report.recipe, report.lock, report.reference) == ("", "", image)
    (note,) = [text for text in report.caveats if text.startswith("derived from")]
    assert note.startswith("derived from cpu-mpi@sha256:")
    assert note.endswith(", with 2 steps on top: USER root; touch /opt/mine")
    said = "the image's user is `root`, and its base's sshd and keys are those of `trainer`"
    assert said in messages(checks)["contents"]
