"""A base from a registry, at length: by BuildKit, built again from what was pushed, without a network."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.bases.read import again
from imagebuilder.catalog import select
from imagebuilder.core import process
from imagebuilder.core.progress import no_advance
from imagebuilder.fetch import locked
from imagebuilder.host.site import detect
from imagebuilder.layers.system.install import build_os_layer
from imagebuilder.plan import UpperOsLayer, User
from imagebuilder.resolve import debian
from imagebuilder.resolve.request import request
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
from tests.support.answers import built_image, one_image

__all__ = ["made", "world"]
_SECONDS = 3000


def test_buildkit_builds_and_loads_it_on_the_base_of_the_lock(
    made: Made, world: World, engine: DockerClient
) -> None:
    """Nothing asks the registry that the base is named after: the store has the base, and the packages."""
    words = ("--engine", "docker", "--load", "--site", world.site, "--store", made.store.root)
    result = process.run([PROGRAM, "build", made.recipe, *words, "--json"], timeout=_SECONDS)
    reference = built_image(result.stdout)["reference"]
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
    told = built_image(built.stdout)
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


def test_two_builds_in_different_surroundings_give_the_same_bytes(
    made: Made, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same base, with fewer packages than the image has."""
    assert made.lock.image is not None
    site, system = detect(world.site), again(made.lock.image, made.store)
    asked = dataclasses.replace(
        request(select(recipes.load(made.recipe, catalog.names()))),
        distribution=system.distribution,
        suite=system.suite,
        packages=("libnccl2", "python3", "python3-venv"),
        deb_pins=(),
    )
    debs, _ = debian.resolve_debs(asked, site, system)
    nothing: Callable[..., None] = lambda *_words: None  # noqa: E731  both are told what nobody asks
    missing = locked.absent(debs, made.store)
    locked.fetch(missing, made.lock, made.store, site, advance=nothing, finished=nothing)
    layer = UpperOsLayer(
        distribution=system.distribution,
        suite=system.suite,
        architecture="amd64",
        debs=debs,
        user=User(name="root", uid=0, home="/root"),
        python="3.13",
        below=made.lock.image.layers,
    )
    files = {deb.sha256: made.store.download(deb.sha256) for deb in debs}
    first = build_os_layer(layer, files, made.store, no_advance)
    second = Store(tmp_path / "store")
    second.root.mkdir()
    (second.root / "downloads").symlink_to(made.store.root / "downloads")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        assert build_os_layer(layer, files, second, no_advance) == first
    finally:
        os.umask(before)


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
    checks = {check["name"]: check for check in one_image(result.stdout)["checks"]}
    assert checks["rebuild"]["status"] == "passed", checks["rebuild"]


def test_without_a_network_the_digest_is_the_same(made: Made, world: World, tmp_path: Path) -> None:
    """All that the lock names is in the store; the layers themselves are not."""
    other = Store(tmp_path / "store")
    other.root.mkdir()
    (other.root / "downloads").symlink_to((made.store.root / "downloads").resolve())
    words = ("build", made.recipe, "--site", world.site, "--store", other.root, "--json")
    # The registry and the archive of this test are on the loopback interface, which is down in there.
    told = process.run(["unshare", "--net", PROGRAM, *words], timeout=_SECONDS)
    assert built_image(told.stdout)["digest"] == made.image.manifest
    assert built_image(told.stdout)["fetched_bytes"] == 0
