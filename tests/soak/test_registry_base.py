"""A base from a registry, at length: by BuildKit, built again from what was pushed, without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.store import Store
from tests.integration.test_registry_base import (
    PROGRAM,
    TAG,
    Made,
    World,
    config_of,
    imagebuilder,
    made,
    world,
)
from tests.support import contents

__all__ = ["made", "world"]
_SECONDS = 3000


def test_buildkit_builds_and_loads_it_on_the_base_of_the_lock(
    made: Made, world: World, engine: DockerClient
) -> None:
    """Nothing asks the registry that the base is named after: the store has the base, and the packages."""
    words = ("--engine", "docker", "--load", "--site", world.site, "--store", made.store.root)
    result = process.run([PROGRAM, "build", made.recipe, *words, "--json"], timeout=_SECONDS)
    reference = json.loads(result.stdout)["reference"]
    try:
        image = engine.images.get(reference)
        config = image.attrs["Config"]
        ours = config_of(made)
        assert config["User"] == ours["User"]
        assert config["Entrypoint"] == ours["Entrypoint"]
        assert sorted(config["Env"]) == sorted(ours["Env"])
        assert config["Labels"]["org.opencontainers.image.base.name"] == f"nvidia/cuda:{TAG}"
        assert config["Labels"]["maintainer"] == "nobody"
        script = (
            "set -e; cat /usr/lib/x86_64-linux-gnu/libnccl2.so; test -e /opt/base-tool; "
            'test -z "$(dpkg --audit)"; test ! -e /usr/share/doc/apt/copyright; apt-mark showhold; '
            "python -c 'import mpi4py, numpy'; id -un"
        )
        out = engine.containers.run(reference, ["sh", "-c", script], remove=True, network_mode="none")
        said = out.decode().splitlines()
        assert said == ["libnccl2 2.26.2-1+cuda12.8", "cuda-cudart-12-8", "trainer"]
    finally:
        engine.images.remove(str(engine.images.get(reference).id), force=True)
        process.run(["docker", "buildx", "prune", "--force"], timeout=_SECONDS)


def test_buildkit_gives_the_same_files_of_packages(made: Made, world: World, tmp_path: Path) -> None:
    place = tmp_path / "docker"
    words = ("--engine", "docker", "--site", world.site, "--store", made.store.root, "--json")
    built = process.run([PROGRAM, "build", made.recipe, "--output", place, *words], timeout=_SECONDS)
    told = json.loads(built.stdout)
    blobs = place / "blobs" / "sha256"
    manifest = json.loads((blobs / told["digest"].removeprefix("sha256:")).read_bytes())
    base = [layer.record.digest for layer in made.image.layers[:3]]
    assert [layer["digest"] for layer in manifest["layers"][:3]] == base
    docker = contents.of_layers(
        [blobs / layer["digest"].removeprefix("sha256:") for layer in manifest["layers"][3:]]
    )
    ours = contents.of_layers([made.store.blob(layer.record.digest) for layer in made.image.layers[3:]])
    for path, item in ours.items():
        if path.startswith(("usr/bin/", "usr/sbin/", "usr/lib/", "etc/ssh/", "usr/local/")):
            assert docker.get(path) == item, path
    shutil.rmtree(place)
    process.run(["docker", "buildx", "prune", "--force"], timeout=_SECONDS)


def test_what_was_published_is_built_again_from_what_is_attached(made: Made, world: World) -> None:
    name = f"{world.host}/team/again"
    own = ("--store", made.store.root, "--site", world.site)
    imagebuilder("push", made.recipe, name, "--untested", *own)
    words = ("--rebuild", "--store", made.store.root, "--site", world.site, "--json")
    result = process.run(
        [PROGRAM, "verify", f"{name}:{made.image.name}-{made.image.tag}", *words],
        timeout=_SECONDS,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["rebuild"]["status"] == "passed", checks["rebuild"]


def test_without_a_network_the_digest_is_the_same(made: Made, world: World, tmp_path: Path) -> None:
    """All that the lock names is in the store; the layers themselves are not."""
    other = Store(tmp_path / "store")
    other.root.mkdir()
    (other.root / "downloads").symlink_to((made.store.root / "downloads").resolve())
    words = ("build", made.recipe, "--site", world.site, "--store", other.root, "--json")
    # The registry and the archive of this test are on the loopback interface, which is down in there.
    told = process.run(["unshare", "--net", PROGRAM, *words], timeout=_SECONDS)
    assert json.loads(told.stdout)["digest"] == made.image.manifest
    assert json.loads(told.stdout)["fetched_bytes"] == 0
