"""The smoke test of images of others that have torch: two rows of the table in docs/how-to/smoke-test.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.smoke.report import CheckResult
from imagebuilder.store import Store
from tests.integration.test_any_image import messages, smoke_test
from tests.support import otherimages

# Debian 12's Python is the one that wheels are downloaded for: the tests' own is 3.11 too.
SUITE = "bookworm"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to build in, with torch for CPUs and what it needs, as this host's pip finds it."""
    assert sys.version_info[:2] == (3, 11), "run it with the Python of Debian 12"
    folder = tmp_path_factory.mktemp("context")
    command = (sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--quiet")
    process.run((*command, "--dest", folder / "wheels", "torch==2.13.0+cpu", "numpy"), timeout=600)
    return folder


@pytest.fixture(scope="module")
def base(engine: DockerClient, store: Store) -> Iterator[str]:
    with otherimages.minimal(engine, store, SUITE) as name:
        yield name


def results(checks: dict[str, CheckResult], status: str) -> set[str]:
    return {name for name, check in checks.items() if check.status == status}


def test_torch_by_pip_with_settings_of_its_author(
    engine: DockerClient, base: str, wheels: Path, store: Store, tmp_path: Path
) -> None:
    with otherimages.built(engine, otherimages.PIP_TORCH, base, wheels) as image:
        _, checks = smoke_test(image, tmp_path, store)
    assert messages(checks).keys() == {"settings"}
    assert len(messages(checks)["settings"]) == 2
    assert {"collectives", "training", "replicas", "rendezvous", "failure"} <= results(checks, "passed")
    assert {"ssh", "mpirun", "environment"} <= results(checks, "skipped")


def test_a_prefix_like_conda_s_is_found_and_logins_do_not_know_it(
    engine: DockerClient, base: str, wheels: Path, store: Store, tmp_path: Path
) -> None:
    with otherimages.built(engine, otherimages.CONDA, base, wheels) as image:
        _, checks = smoke_test(image, tmp_path, store)
    failed = messages(checks)
    assert failed.keys() == {"contents", "ssh", "environment"}
    said = "sshd does not start on port 22; it says: Missing privilege separation directory: /run/sshd"
    assert failed["contents"][:2] == [said] * 2
    assert failed["contents"][2].startswith("the image holds private host keys: /etc/ssh/ssh_host_")
    assert "`python` is not found, not /opt/conda/bin/python" in failed["environment"][0]
    assert {"pins", "link", "collectives", "training", "replicas"} <= results(checks, "passed")
    assert "mpirun" in results(checks, "skipped")
