"""The docker engine, with a false `docker` that gives a small root file system for every build."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from imagebuilder import oci, share
from imagebuilder import plan as plans
from imagebuilder.engines import bases, docker, embedded
from imagebuilder.engines.means import Choice, Means
from imagebuilder.errors import BuildError, EnvironmentFault, InputError
from imagebuilder.lock import Build, Source
from imagebuilder.plan import DockerOsLayer, Entry, Plan
from imagebuilder.progress import LineProgress
from imagebuilder.render import render
from imagebuilder.site import Site, ToolsSite
from imagebuilder.store import DamagedDownloadError, LayerRecord, Store
from imagebuilder.workflow import labels
from tests.unit import samples

DIGEST = f"sha256:{'1' * 64}"
FALSE_DOCKER = """\
#!{python}
import io, json, os, pathlib, sys, tarfile
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
with open(here / "asked", "a") as log:
    log.write(" ".join(words) + "\\n")
line = " ".join(words)
if line.startswith("buildx version"):
    print("github.com/docker/buildx v0.29.1")
elif line.startswith("buildx inspect"):
    print("Name: default\\nDriver: docker\\nBuildKit version: v0.25.0")
elif line.startswith("version"):
    print("28.5.2")
elif line.startswith("info"):
    print((here / "status").read_text())
elif line.startswith("buildx imagetools"):
    digest = (here / "digest").read_text()
    print(json.dumps({{"digest": digest}})) if digest else sys.exit(1)
elif line.startswith("buildx build"):
    if (here / "fail").exists():
        sys.exit("ERROR: " + (here / "fail").read_text())
    (here / "Dockerfile").write_text(pathlib.Path(words[words.index("--file") + 1]).read_text())
    outputs = [word for word in words if word.startswith("--output=")]
    for place in (word.split("dest=")[1] for word in outputs):
        if "tar=false" in outputs[0]:
            os.mkdir(place)
            (pathlib.Path(place) / "oci-layout").write_text("x")
        else:
            with tarfile.open(place, "w") as tar:
                tar.addfile(tarfile.TarInfo("etc/motd"), io.BytesIO())
    if "--metadata-file" in words:
        found = {{"containerimage.digest": "{digest}", "containerimage.config.digest": "{digest}"}}
        pathlib.Path(words[words.index("--metadata-file") + 1]).write_text(json.dumps(found))
"""


@pytest.fixture
def false_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(FALSE_DOCKER.format(python=sys.executable, digest=DIGEST))
    (folder / "docker").chmod(0o755)
    (folder / "status").write_text('[["driver-type","io.containerd.snapshotter.v1"]]')
    (folder / "digest").write_text(DIGEST)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def planned(store: Store) -> tuple[Plan, embedded.Workshop]:
    """An image of one Debian package and no wheels, whose bytes are in the store."""
    data = b"no real package"
    sha256 = hashlib.sha256(data).hexdigest()
    store.download(sha256).parent.mkdir(parents=True)
    store.download(sha256).write_bytes(data)
    deb = samples.deb("openmpi-bin", "5.0.7-1").model_copy(update={"sha256": sha256, "size": len(data)})
    lock = samples.lock(debs=(deb,), wheels=())
    plan = plans.plan(samples.recipe(), lock, (Entry(path="/etc/x", kind="file", mode=0o644, text="x"),))
    shop = embedded.Workshop(lock=lock, store=store, site=Site(), progress=LineProgress(sys.stderr))
    return plan, shop


def asked(folder: Path) -> list[str]:
    found = (folder / "asked").read_text().splitlines()
    return [line for line in found if line.startswith("buildx build")]


def test_the_os_stage_becomes_a_layer_and_is_not_made_twice(false_docker: Path, store: Store) -> None:
    plan, shop = planned(store)
    built = docker.build(plan, shop, Means(base="registry"))
    (line,) = asked(false_docker)
    assert "--target os" in line
    assert "--network=none" in line
    assert f"--build-context debian:trixie=docker-image://debian:trixie@{DIGEST}" in line
    assert "--build-context debs=" in line
    assert (built.made, len(built.image.layers)) == (2, 2)
    again = docker.build(plan, shop, Means(base="registry"))
    assert (again.made, again.image) == (0, built.image)
    assert len(asked(false_docker)) == 1
    assert not list((store.root / "work").iterdir())


@pytest.mark.usefixtures("false_docker")
def test_the_image_says_who_made_it_and_is_in_step_with_its_plan(store: Store) -> None:
    plan, shop = planned(store)
    image = docker.build(plan, shop, Means(base="registry")).image
    found = labels(image, store)
    assert found[plans.ENGINE_LABEL] == "docker"
    assert found["org.opencontainers.image.base.digest"] == DIGEST
    assert not oci.is_image_of(plan, image, store)
    made = plans.as_made(plan, found)
    assert oci.is_image_of(made, image, store)
    assert isinstance(made.layers[0], DockerOsLayer)


def test_the_embedded_engines_keys_and_config_do_not_change(store: Store) -> None:
    plan, _ = planned(store)
    assert plans.as_made(plan, {}) == plan
    changed = plans.by_docker(plan)
    assert changed.layers[0].key != plan.layers[0].key
    assert changed.layers[1:] == plan.layers[plan.system_layers :]
    assert plans.by_docker(plan, DIGEST).layers[0].key != changed.layers[0].key


def test_a_base_that_was_made_here_is_handed_over(
    false_docker: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "bootstrap", lambda _layer, shop: made_base(shop.store))
    plan, shop = planned(store)
    image = docker.build(plan, shop, Means(base="bootstrap")).image
    (line,) = asked(false_docker)
    assert re.search(r"--build-context debian:trixie=oci-layout://\S+/base@sha256:[0-9a-f]{64} ", line)
    assert "org.opencontainers.image.base.digest" not in labels(image, store)


def made_base(store: Store) -> LayerRecord:
    digest, size = store.put_bytes(b"a base")
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")


@pytest.mark.parametrize("fails", [False, True])
def test_the_classic_store_gets_the_base_as_an_image_that_goes_away_again(
    false_docker: Path, store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(bases, "bootstrap", lambda _layer, shop: made_base(shop.store))
    (false_docker / "status").write_text('[["Backing Filesystem","extfs"]]')
    if fails:
        (false_docker / "fail").write_text("it broke")
    plan, shop = planned(store)
    with pytest.raises(BuildError, match="it broke") if fails else contextlib.nullcontext():
        docker.build(plan, shop, Means(base="bootstrap"))
    lines = (false_docker / "asked").read_text().splitlines()
    (name,) = (line.split()[-1] for line in lines if line.startswith("import "))
    assert f"--build-context debian:trixie=docker-image://{name} " in asked(false_docker)[0]
    assert lines[-1] == f"image rm {name}"


def test_a_failed_step_leaves_no_layer_and_no_image(false_docker: Path, store: Store) -> None:
    (false_docker / "fail").write_text("no space left on device")
    plan, shop = planned(store)
    with pytest.raises(EnvironmentFault, match="disk is full"):
        docker.build(plan, shop, Means(base="registry"))
    assert store.image_names() == ()
    assert not any("docker" in key for key in store.layer_keys())
    assert not list((store.root / "work").iterdir())


def test_pure_builds_all_of_the_dockerfile_and_names_the_image(false_docker: Path, store: Store) -> None:
    plan, shop = planned(store)
    built = docker.build_pure(plan, shop, Means(base="registry"), load=True)
    (line,) = asked(false_docker)
    assert "--target" not in line
    assert "--provenance=false" in line
    assert f"--load --tag sample:{plan.tag} --tag sample:latest" in line
    assert (built.digest, built.reference) == (DIGEST, f"sample:{plan.tag}")
    text = (false_docker / "Dockerfile").read_text()
    assert 'org.imagebuilder.engine="docker"' in text
    assert store.image_names() == ()


@pytest.mark.parametrize("name", ["image.tar", "image"])
def test_pure_writes_a_layout_in_one_step(
    false_docker: Path, store: Store, tmp_path: Path, name: str
) -> None:
    plan, shop = planned(store)
    place = tmp_path / "given" / name
    docker.build_pure(plan, shop, Means(base="registry"), load=False, output=place)
    assert place.exists()
    assert [path.name for path in place.parent.iterdir()] == [name]
    (false_docker / "fail").write_text("it broke")
    with pytest.raises(Exception, match="it broke"):
        docker.build_pure(plan, shop, Means(base="registry"), load=False, output=tmp_path / "other" / name)
    assert list((tmp_path / "other").iterdir()) == []


def test_pure_does_not_replace_what_is_no_image(false_docker: Path, store: Store, tmp_path: Path) -> None:
    plan, shop = planned(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(InputError, match="is not an OCI image"):
        docker.build_pure(plan, shop, Means(base="registry"), load=False, output=tmp_path / "mine")
    assert asked(false_docker) == []


def test_the_classic_store_is_told_of_in_one_line(
    false_docker: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (false_docker / "status").write_text('[["Backing Filesystem","extfs"]]')
    plan, shop = planned(store)
    docker.build_pure(plan, shop, Means(base="registry"), load=True)
    told = [line for line in capsys.readouterr().err.splitlines() if "COPY --link" in line]
    assert len(told) == 1
    with pytest.raises(EnvironmentFault, match="exports no OCI image"):
        docker.build_pure(plan, shop, Means(base="registry"), load=False, output=Path("x.tar"))


@pytest.mark.parametrize(
    ("wanted", "registry_first", "digest", "at_hand", "expected"),
    [
        ("auto", False, DIGEST, True, ""),
        ("auto", False, DIGEST, False, DIGEST),
        ("auto", False, "", False, ""),
        ("auto", True, DIGEST, True, DIGEST),
        ("auto", True, "", True, ""),
        ("registry", False, DIGEST, True, DIGEST),
        ("bootstrap", True, DIGEST, True, ""),
    ],
)
def test_where_the_base_comes_from(
    false_docker: Path, store: Store, wanted: Choice, registry_first: bool, digest: str, at_hand: bool,
    expected: str,
) -> None:  # fmt: skip
    (false_docker / "digest").write_text(digest)
    layer = planned(store)[0].system
    found = bases.choose(layer, wanted, site(at_hand=at_hand), registry_first=registry_first)
    assert found.digest == expected


def site(*, at_hand: bool) -> Site:
    """A host that has mmdebstrap itself, or one that has it in a container."""
    return Site(tools=ToolsSite(where="host" if at_hand else "container"))


def test_a_registry_that_does_not_answer_is_said_with_a_way_out(false_docker: Path, store: Store) -> None:
    (false_docker / "digest").write_text("")
    layer = planned(store)[0].system
    with pytest.raises(EnvironmentFault, match="no registry answers") as caught:
        bases.choose(layer, "registry", Site(), registry_first=False)
    assert "--base bootstrap" in str(caught.value)


def test_the_os_stage_has_not_changed_without_its_format() -> None:
    """A stage that gives other files needs another key: then count the format up, and add a row here."""
    text = render(plans.plan(samples.recipe(), samples.lock(), ()), share.template("Dockerfile.j2"))
    start = text.index("\nFROM debian:trixie AS os\n")
    stage = text[start : text.index("\nIMAGEBUILDER_END_OF_FILE\n", start)]
    assert {DockerOsLayer.FORMAT: hashlib.sha256(stage.encode()).hexdigest()[:12]} == {1: "6b25ca3d25a9"}


def on_a_registry_image() -> tuple[Plan, str]:
    image = samples.base_image()
    lock = samples.lock(image=image, format=2)
    plan = plans.plan(samples.recipe(base={"image": image.name}), lock, ())
    return plan, f"{image.name}@{image.digest}"


def test_a_registry_image_is_not_flattened_into_a_layer(false_docker: Path, store: Store) -> None:
    plan, _ = on_a_registry_image()
    _, shop = planned(store)
    with pytest.raises(InputError, match="would no longer be the registry") as caught:
        docker.build(plan, shop, Means())
    assert "--pure" in caught.value.problems[0].hint
    assert not (false_docker / "asked").exists()


def held(store: Store) -> tuple[Plan, embedded.Workshop, str]:
    """An image on a registry's base, whose one layer and one package are in the store."""
    _, shop = planned(store)
    data = b"no real layer"
    sha256 = hashlib.sha256(data).hexdigest()
    store.download(sha256).write_bytes(data)
    layer = samples.base_image().layers[0]
    layer = layer.model_copy(update={"digest": f"sha256:{sha256}", "size": len(data)})
    # Twice, as an empty layer often is.
    image = samples.base_image().model_copy(update={"layers": (layer, layer), "user": "ubuntu"})
    lock = shop.lock.model_copy(update={"image": image, "format": 2})
    plan = plans.plan(samples.recipe(base={"image": image.name}), lock, ())
    return plan, dataclasses.replace(shop, lock=lock), f"{image.name}@{image.digest}"


def test_the_dockerfile_alone_starts_from_the_registry_image(false_docker: Path, store: Store) -> None:
    """The store hands it in, and the packages: the site's places of both are nothing for a Dockerfile."""
    plan, shop, name = held(store)
    made = docker.build_pure(plan, shop, Means(), load=True)
    assert made.digest == DIGEST
    text = (false_docker / "Dockerfile").read_text()
    assert f"\nFROM {name} AS os\nUSER 0:0\n" in text
    assert "--allow-change-held-packages" in text
    (build,) = asked(false_docker)
    assert f"--build-context {name}=oci-layout://" in build
    assert "--build-context debs=/" in build
    assert list((store.root / "work").iterdir()) == []


def test_the_base_that_is_handed_in_has_its_layers_and_its_settings(store: Store, tmp_path: Path) -> None:
    _, shop, _ = held(store)
    image = shop.lock.image
    assert image is not None
    place = bases.imported(image, "amd64", store, tmp_path / "base")
    blobs = tmp_path / "base" / "blobs" / "sha256"
    manifest = json.loads((blobs / place.rpartition("sha256:")[2]).read_bytes())
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.digest for layer in image.layers]
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in image.layers]
    assert config["config"]["User"] == "ubuntu"
    assert dict(item.split("=", 1) for item in config["config"]["Env"]) == image.env
    store.download(image.layers[0].sha256).write_bytes(b"rotten")
    with pytest.raises(DamagedDownloadError):
        bases.imported(image, "amd64", store, tmp_path / "again")


def test_the_classic_store_pulls_the_base_by_its_digest(false_docker: Path, store: Store) -> None:
    (false_docker / "status").write_text('[["Backing Filesystem","extfs"]]')
    plan, shop, name = held(store)
    docker.build_pure(plan, shop, Means(), load=True)
    (build,) = asked(false_docker)
    assert f"--build-context {name}" not in build
    assert "--build-context debs=/" in build


def test_an_archive_of_upstream_s_is_handed_in(false_docker: Path, store: Store) -> None:
    _, shop = planned(store)
    data = b"no real archive"
    sha256 = hashlib.sha256(data).hexdigest()
    store.download(sha256).write_bytes(data)
    source = Source(
        name="openmpi",
        version="5.0.99",
        file="openmpi-5.0.99.tar.gz",
        size=len(data),
        sha256=sha256,
        upstream=True,
    )
    build = Build(
        component="openmpi", version="5.0.99", packages=(), system=(), debs=(), wheels=(), sources=(source,)
    )
    lock = shop.lock.model_copy(update={"builds": (build,), "format": 2})
    recipe = samples.recipe(pins={"openmpi": "5.0.99"}, build=("openmpi",))
    docker.build_pure(
        plans.plan(recipe, lock, ()), dataclasses.replace(shop, lock=lock), Means(base="registry"), load=True
    )
    (line,) = asked(false_docker)
    assert "--build-context sources=/" in line
