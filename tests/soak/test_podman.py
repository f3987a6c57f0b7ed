"""Podman: GPUs by CDI, with a newer one than Debian 12's in a container; and an image of others."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.smoke import engine as engines
from imagebuilder.store import Store
from tests.integration.test_any_image import NO_FRAMEWORK, messages, smoke_test
from tests.support import otherimages, servers, standin_gpus

_SECONDS = 60.0
_SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@contextlib.contextmanager
def podman(engine: DockerClient, store: Store, folder: Path) -> Iterator[str]:
    """Podman's service, with the CDI specifications of a folder; yields its address."""
    specs = standin_gpus.write(folder)
    (folder / "containers.conf").write_text(_SETTINGS)
    socket = folder / "podman.sock"
    with (
        otherimages.minimal(engine, store) as base,
        otherimages.built(engine, otherimages.PODMAN, base) as image,
    ):
        container = engine.containers.run(
            image,
            ["podman", "system", "service", "--time=0", f"unix://{socket}"],
            name=f"imagebuilder-test-{uuid.uuid4().hex[:12]}",
            detach=True,
            privileged=True,
            cgroupns="host",
            environment={
                "CONTAINERS_CONF": f"{folder}/containers.conf",
                "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
            },
            # The same path inside: the specification names files of the engine's host.
            volumes=[f"{folder}:{folder}", f"{specs}:/etc/cdi:ro", "/var/lib/containers"],
        )
        try:
            deadline = time.monotonic() + _SECONDS
            while not socket.exists():
                container.reload()
                assert container.status == "running", container.logs().decode()
                assert time.monotonic() < deadline, container.logs().decode()
                time.sleep(0.1)
            yield f"unix://{socket}"
        finally:
            container.remove(force=True, v=True)


def test_each_node_gets_the_gpu_that_was_named_for_it_and_the_report_says_which(
    engine: DockerClient, store: Store, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with podman(engine, store, short_folder) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        with engines.connect("podman") as other:
            assert other.gpu_routes == ("cdi",)
        standin_gpus.require(store)


def test_an_image_of_others_is_judged_as_on_docker_and_nothing_stays(
    engine: DockerClient, store: Store, short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        otherimages.minimal(engine, store) as base,
        otherimages.built(engine, otherimages.OPENMPI, base) as image,
        servers.podman(short_folder) as address,
    ):
        archive = engine.images.get(image).save(named=True)
        monkeypatch.setenv("DOCKER_HOST", address)
        with engines.connect("podman") as other:
            for _ in other.client.api.load_image(archive):  # type: ignore[no-untyped-call]
                pass
            (name,) = [tag for item in other.client.images.list() for tag in item.tags]
        report, checks = smoke_test(name, tmp_path, store, "--runtime", "podman")
        with engines.connect("podman") as other:
            assert other.client.containers.list(all=True) == []
            assert other.client.volumes.list() == []
            assert [tag for item in other.client.images.list() for tag in item.tags] == [name]
    # The same findings as on Docker, see tests/integration/test_any_image.py.
    failed = messages(checks)
    assert failed.keys() == {"contents", "environment", "failure", "mpirun"}
    assert failed["contents"][0].startswith("the image holds private host keys: /etc/ssh/ssh_host_")
    assert checks["ssh"].summary == "2 logins between nodes as root, host keys checked strictly"
    assert (checks["training"].status, checks["training"].reason) == ("skipped", NO_FRAMEWORK)
    assert (report.runtime, report.recipe, report.lock) == ("podman", "", "")
    assert "its entrypoint was not run: /bin/sh -c 'exit 3'" in report.caveats
