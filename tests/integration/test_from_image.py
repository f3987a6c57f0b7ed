"""`init --from-image` on an image of the engine that a Dockerfile made, and what its recipe locks to."""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.core import process
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.store import Store
from tests.support import standin_base

PROGRAM = Path(sys.executable).parent / "imagebuilder"
DOCKERFILE = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev \
openssh-server less \
 && rm -rf /var/lib/apt/lists/* && useradd -m trainer
ENV HF_HOME=/data/hf
RUN mkdir /workspace && echo 'print(1)' >/workspace/train.py && touch /never-run
USER trainer
WORKDIR /workspace
ENTRYPOINT ["/bin/sh", "-c", "exit 3"]
"""


@pytest.fixture(scope="module")
def image(engine: DockerClient, store: Store) -> Iterator[str]:
    """The name of the image."""
    name = f"imagebuilder-test-{uuid.uuid4().hex[:12]}"
    data = standin_base.minimal_debian(store.root / "bases")
    engine.api.import_image_from_data(data, repository=f"{name}-base", tag="1")
    text = DOCKERFILE.format(base=f"{name}-base:1").encode()
    engine.images.build(fileobj=io.BytesIO(text), tag=f"{name}:1", network_mode="host", rm=True)
    yield f"{name}:1"
    for tag in (f"{name}:1", f"{name}-base:1"):
        engine.images.remove(tag, force=True)


def imagebuilder(*words: str | Path, code: int = 0) -> process.Result:
    result = process.run([PROGRAM, *words], timeout=900, check=False)
    assert result.code == code, f"{result.stdout}\n{result.stderr}"
    return result


def test_its_recipe_locks_to_the_packages_that_it_had(
    image: str, engine: DockerClient, store: Store, tmp_path: Path
) -> None:
    before = {container.id for container in engine.containers.list(all=True)}
    imagebuilder("init", tmp_path, "--from-image", image, "--store", store.root)
    assert {container.id for container in engine.containers.list(all=True)} <= before
    path = tmp_path / f"{image.removesuffix(':1')}.yaml"
    recipe = recipes.load(path, catalog.names())
    assert (recipe.base, recipe.python) == ("debian:trixie", "3.13")
    assert recipe.pins["openmpi"] == "5.0.7"
    assert "less" in recipe.apt
    assert (recipe.ssh.user, recipe.ssh.port) == ("trainer", 2222)
    assert recipe.workdir == "/workspace"
    assert recipe.env == {"HF_HOME": "/data/hf"}
    text = path.read_text(encoding="utf-8")
    for word in ("ENTRYPOINT", "/workspace", "etc/ssh/ssh_host_ed25519_key"):
        assert word in text, text
    imagebuilder("check", path)
    imagebuilder("lock", path, "--store", store.root)
    lock = lockfile.read(locks.path_for(path)).sections[0]
    was = engine.containers.run(
        image, ["-W", "-f", "${Package} "], entrypoint=["dpkg-query"], remove=True
    ).decode()
    lost = set(was.split()) - {deb.name for deb in lock.debs}
    # Nothing had come by recommendations, which a recipe leaves out.
    assert lost == set()


def test_an_image_for_another_platform_is_refused(image: str, tmp_path: Path) -> None:
    words = ("--platform", "linux/arm64")
    said = imagebuilder("init", tmp_path, "--from-image", image, *words, code=3).stderr
    assert "has it for linux/amd64, not for linux/arm64" in said
    assert list(tmp_path.iterdir()) == []
