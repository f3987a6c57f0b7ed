"""Loading into real engines: only what an engine lacks travels, and it has then what the store has."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from imagebuilder.engines.load import load
from imagebuilder.image import repack
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.support.forward import forward
from tests.support.images import put_image
from tests.support.servers import classic_docker, podman


@pytest.fixture(scope="module", params=["host", "classic", "podman"])
def address(request: pytest.FixtureRequest, connected: Engine, short_folder: Path) -> Iterator[str]:
    """The host's own engine, a Docker with the classic store, and Podman."""
    if request.param == "host":
        del connected  # that it answers is what matters
        yield ""
        return
    folder = short_folder / request.param
    folder.mkdir()
    with (classic_docker if request.param == "classic" else podman)(folder) as found:
        yield found


@pytest.fixture
def local(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    if address:
        monkeypatch.setenv("DOCKER_HOST", address)
    with engines.connect("auto") as found:
        yield found
        remove_all(found)


@pytest.fixture
def images(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


def remove_all(engine: Engine) -> None:
    for image in engine.client.images.list(all=True, filters={"label": "org.imagebuilder.test"}):
        for tag in image.tags:
            engine.client.images.remove(tag, force=True)
    for image in engine.client.images.list(all=True, filters={"label": "org.imagebuilder.test"}):
        engine.client.images.remove(str(image.id), force=True)


def tags_of(engine: Engine) -> set[str]:
    found = engine.client.images.list(filters={"label": "org.imagebuilder.test"})
    return {tag for image in found for tag in image.tags}


def test_only_missing_layers_travel(local: Engine, images: Store) -> None:
    # Fresh bytes: no earlier run has loaded these layers.
    layers = [{"a": os.urandom(2_000_000)}, {"b": os.urandom(500_000)}]
    image = put_image(images, layers, name="load-sample")
    counted: list[int] = []
    first = load(image, images, local, ["extra"], advance=counted.append)
    assert not first.by_archive
    assert first.moved_bytes == sum(counted)
    assert 0 <= first.moved_bytes - sum(layer.record.size for layer in image.layers) < 5_000
    prefix = "localhost/" if local.kind == "podman" else ""
    names = {f"{prefix}load-sample:{tag}" for tag in (image.tag, "extra", "latest")}
    assert set(first.references) == names
    # And no trace of the address that it came from.
    assert tags_of(local) == names

    again = load(image, images, local)
    assert again.moved_bytes == 0

    changed = put_image(images, [layers[0], {"b": os.urandom(300_000)}], name="load-sample", label="two")
    second = load(changed, images, local)
    assert 0 <= second.moved_bytes - changed.layers[1].record.size < 5_000
    found = local.client.images.get(second.reference)
    assert found.labels == {"org.imagebuilder.recipe": "load-sample", "org.imagebuilder.test": "two"}
    assert found.id in {changed.manifest, changed.config}


def test_layers_packed_with_zstd_are_pulled_and_run(local: Engine, images: Store) -> None:
    program = Path("/sbin/ldconfig").read_bytes()  # Debian links it statically: it needs no other file
    image = put_image(images, [{"program": program}, {"b": os.urandom(100_000)}], name="zstd-sample")
    packed = repack.repack(image, images).images[image.manifest]
    assert load(packed, images, local).moved_bytes >= packed.layers[0].record.size
    reference = load(packed, images, local).reference
    # Docker's classic store and Podman know an image by its config, which is the same in gzip.
    assert local.client.images.get(reference).id in {packed.manifest, image.config}
    ran = local.client.containers.run(
        reference, entrypoint=["/program"], command=["--version"], remove=True, network_mode="none"
    )
    assert b"ldconfig" in ran


def test_an_older_image_without_a_name_is_removed_unless_a_container_uses_it(
    local: Engine, images: Store
) -> None:
    def loaded(content: str, recipe: str = "mine") -> str:
        # The same tag, as after a change of the user's own files.
        image = put_image(images, [{"a": content.encode()}], name=recipe)
        reference = load(dataclasses.replace(image, tag="one"), images, local).reference
        return str(local.client.images.get(reference).id)

    first = loaded("first")
    second = loaded("second")
    with pytest.raises(ImageNotFound):
        local.client.images.get(first)
    container = local.client.containers.create(second, command=["true"])
    try:
        loaded("third")
        assert local.client.images.get(second).id == second
    finally:
        container.remove()
    # An image of somebody else's that had our name.
    other = loaded("other", recipe="theirs")
    local.client.api.tag(other, "localhost/mine" if local.kind == "podman" else "mine", "one")
    for reference in ("theirs:one", "theirs:latest"):
        local.client.images.remove(f"localhost/{reference}" if local.kind == "podman" else reference)
    loaded("fourth")
    assert local.client.images.get(other).id == other


def test_an_engine_elsewhere_gets_an_archive(
    address: str,
    local: Engine,
    images: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = address or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    image = put_image(images, [{"a": os.urandom(700_000)}], name="archive-sample")
    with forward(Path(place.removeprefix("unix://"))) as port:
        monkeypatch.setenv("DOCKER_HOST", port)
        with engines.connect("auto") as remote:
            result = load(image, images, remote)
    assert result.by_archive
    assert result.moved_bytes >= image.layers[0].record.size
    assert "cannot reach this host's loopback" in caplog.text
    found = local.client.images.get(result.reference)
    assert found.id in {image.manifest, image.config}
    assert result.reference in found.tags
