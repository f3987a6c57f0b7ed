"""The docker engine, with a false `docker` that gives a small archive for every build."""

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
from typer.testing import CliRunner

from imagebuilder import cli
from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.cli import answer
from imagebuilder.cli.engines import DockerBuild, build_with_docker
from imagebuilder.core import labels as label_names
from imagebuilder.core.progress import LineProgress
from imagebuilder.engines import bases, dockerfile, embedded
from imagebuilder.engines.bases import Choice
from imagebuilder.engines.dockerfile import BuildxOptions
from imagebuilder.errors import BuildError, EnvironmentFault, InputError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Build, Source
from imagebuilder.plan import Entry, Plan
from imagebuilder.store import DamagedDownloadError, LayerRecord, Store
from tests.unit import samples

DIGEST = f"sha256:{'1' * 64}"
FALSE_DOCKER = """\
#!{python} -IS
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


def planned(store: Store) -> tuple[Plan, embedded.BuildContext]:
    """An image of one Debian package and no wheels, whose bytes are in the store."""
    data = b"no real package"
    sha256 = hashlib.sha256(data).hexdigest()
    store.download(sha256).parent.mkdir(parents=True)
    store.download(sha256).write_bytes(data)
    deb = samples.deb("openmpi-bin", "5.0.7-1").model_copy(update={"sha256": sha256, "size": len(data)})
    lock = samples.lock(debs=(deb,), wheels=())
    plan = plans.plan(
        select(samples.recipe()), lock, (Entry(path="/etc/x", kind="file", mode=0o644, text="x"),)
    )
    context = embedded.BuildContext(lock=lock, store=store, site=Site(), progress=LineProgress(sys.stderr))
    return plan, context


def asked(folder: Path) -> list[str]:
    found = (folder / "asked").read_text().splitlines()
    return [line for line in found if line.startswith("buildx build")]


def test_a_base_that_was_made_here_is_handed_over(
    false_docker: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "bootstrap", lambda _layer, context: made_base(context.store))
    plan, context = planned(store)
    dockerfile.build(plan, context, BuildxOptions(base="bootstrap"), load=True)
    (line,) = asked(false_docker)
    assert re.search(r"--build-context debian:trixie=oci-layout://\S+/base@sha256:[0-9a-f]{64} ", line)
    assert re.search(r"--build-context debs=\S+/debs ", line)
    assert label_names.BASE_DIGEST not in (false_docker / "Dockerfile").read_text()


def made_base(store: Store) -> LayerRecord:
    digest, size = store.put_bytes(b"a base")
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")


@pytest.mark.parametrize("fails", [False, True])
def test_the_classic_store_gets_the_base_as_an_image_that_goes_away_again(
    false_docker: Path, store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(bases, "bootstrap", lambda _layer, context: made_base(context.store))
    (false_docker / "status").write_text('[["Backing Filesystem","extfs"]]')
    if fails:
        (false_docker / "fail").write_text("it broke")
    plan, context = planned(store)
    with pytest.raises(BuildError, match="it broke") if fails else contextlib.nullcontext():
        dockerfile.build(plan, context, BuildxOptions(base="bootstrap"), load=True)
    lines = (false_docker / "asked").read_text().splitlines()
    (name,) = (line.split()[-1] for line in lines if line.startswith("import "))
    assert f"--build-context debian:trixie=docker-image://{name} " in asked(false_docker)[0]
    assert lines[-1] == f"image rm {name}"


def test_a_failed_step_leaves_nothing_in_the_store(false_docker: Path, store: Store) -> None:
    (false_docker / "fail").write_text("no space left on device")
    plan, context = planned(store)
    with pytest.raises(EnvironmentFault, match="disk is full"):
        dockerfile.build(plan, context, BuildxOptions(base="registry"), load=True)
    assert store.image_names() == ()
    assert list(store.layer_keys()) == []
    assert not list((store.root / "work").iterdir())


def test_buildkit_builds_all_of_the_dockerfile_and_names_the_image(false_docker: Path, store: Store) -> None:
    plan, context = planned(store)
    built = dockerfile.build(plan, context, BuildxOptions(base="registry"), load=True)
    (line,) = asked(false_docker)
    assert "--target" not in line
    assert f"--build-context debian:trixie=docker-image://debian:trixie@{DIGEST}" in line
    assert "--provenance=false" in line
    assert f"--load --tag sample:{plan.tag} --tag sample:latest" in line
    assert (built.digest, built.reference) == (DIGEST, f"sample:{plan.tag}")
    text = (false_docker / "Dockerfile").read_text()
    assert 'org.imagebuilder.engine="docker"' in text
    assert f'org.opencontainers.image.base.digest="{DIGEST}"' in text
    assert store.image_names() == ()


@pytest.mark.parametrize("name", ["image.tar", "image"])
def test_a_layout_is_written_in_one_step(false_docker: Path, store: Store, tmp_path: Path, name: str) -> None:
    plan, context = planned(store)
    place = tmp_path / "given" / name
    dockerfile.build(plan, context, BuildxOptions(base="registry"), load=False, output=place)
    assert place.exists()
    assert [path.name for path in place.parent.iterdir()] == [name]
    (false_docker / "fail").write_text("it broke")
    with pytest.raises(Exception, match="it broke"):
        dockerfile.build(
            plan, context, BuildxOptions(base="registry"), load=False, output=tmp_path / "other" / name
        )
    assert list((tmp_path / "other").iterdir()) == []


def test_the_output_does_not_replace_other_files(false_docker: Path, store: Store, tmp_path: Path) -> None:
    plan, context = planned(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(InputError, match="is not an OCI image"):
        dockerfile.build(plan, context, BuildxOptions(base="registry"), load=False, output=tmp_path / "mine")
    assert asked(false_docker) == []


def test_the_classic_store_is_told_of_in_one_line(
    false_docker: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (false_docker / "status").write_text('[["Backing Filesystem","extfs"]]')
    plan, context = planned(store)
    dockerfile.build(plan, context, BuildxOptions(base="registry"), load=True)
    told = [line for line in capsys.readouterr().err.splitlines() if "classic image store: " in line]
    assert len(told) == 1
    with pytest.raises(EnvironmentFault, match="exports no OCI image"):
        dockerfile.build(plan, context, BuildxOptions(base="registry"), load=False, output=Path("x.tar"))


@pytest.mark.parametrize(
    ("wanted", "digest", "expected"),
    [
        ("auto", DIGEST, DIGEST),
        ("auto", "", ""),
        ("registry", DIGEST, DIGEST),
        ("bootstrap", DIGEST, ""),
    ],
)
def test_where_the_base_comes_from(
    false_docker: Path, store: Store, wanted: Choice, digest: str, expected: str
) -> None:
    (false_docker / "digest").write_text(digest)
    layer = planned(store)[0].system
    assert bases.choose(layer, wanted).digest == expected


def test_a_registry_that_does_not_answer_is_said_with_a_way_out(false_docker: Path, store: Store) -> None:
    (false_docker / "digest").write_text("")
    layer = planned(store)[0].system
    with pytest.raises(EnvironmentFault, match="no registry answers") as caught:
        bases.choose(layer, "registry")
    assert "--base bootstrap" in str(caught.value)


def held(store: Store) -> tuple[Plan, embedded.BuildContext, str]:
    """An image on a registry's base, whose one layer and one package are in the store."""
    _, context = planned(store)
    data = b"no real layer"
    sha256 = hashlib.sha256(data).hexdigest()
    store.download(sha256).write_bytes(data)
    layer = samples.base_image().layers[0]
    layer = layer.model_copy(update={"digest": f"sha256:{sha256}", "size": len(data)})
    # Twice, as an empty layer often is.
    image = samples.base_image().model_copy(update={"layers": (layer, layer), "user": "ubuntu"})
    lock = context.lock.model_copy(update={"image": image})
    plan = plans.plan(select(samples.recipe(base={"image": image.name})), lock, ())
    return plan, dataclasses.replace(context, lock=lock), f"{image.name}@{image.digest}"


def test_the_dockerfile_alone_starts_from_the_registry_image(false_docker: Path, store: Store) -> None:
    """The store hands it in, and the packages: the site's places of both are nothing for a Dockerfile."""
    plan, context, name = held(store)
    made = dockerfile.build(plan, context, BuildxOptions(), load=True)
    assert made.digest == DIGEST
    text = (false_docker / "Dockerfile").read_text()
    assert f"\nFROM {name} AS os\nUSER 0:0\n" in text
    assert "--allow-change-held-packages" in text
    (build,) = asked(false_docker)
    assert f"--build-context {name}=oci-layout://" in build
    assert "--build-context debs=/" in build
    assert list((store.root / "work").iterdir()) == []


def test_the_base_that_is_handed_in_has_its_layers_and_its_settings(store: Store, tmp_path: Path) -> None:
    _, context, _ = held(store)
    image = context.lock.image
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
    plan, context, name = held(store)
    dockerfile.build(plan, context, BuildxOptions(), load=True)
    (build,) = asked(false_docker)
    assert f"--build-context {name}" not in build
    assert "--build-context debs=/" in build


def test_an_archive_of_upstream_s_is_handed_in(false_docker: Path, store: Store) -> None:
    _, context = planned(store)
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
    lock = context.lock.model_copy(update={"builds": (build,)})
    recipe = samples.recipe(pins={"openmpi": "5.0.99"}, build=("openmpi",))
    dockerfile.build(
        plans.plan(select(recipe), lock, ()),
        dataclasses.replace(context, lock=lock),
        BuildxOptions(base="registry"),
        load=True,
    )
    (line,) = asked(false_docker)
    assert "--build-context sources=/" in line


@pytest.mark.parametrize(
    ("words", "where", "message"),
    [
        (("--engine", "podman"), "--engine", "`podman` is not an engine: choose embedded or docker"),
        (
            ("--engine", "docker", "--base", "x"),
            "--base",
            "`x` is not a base: choose one of auto, registry, bootstrap",
        ),
        (
            ("--engine", "docker", "--verify"),
            "--verify",
            "the docker engine promises the same files, not the same bytes",
        ),
        (
            ("--engine", "docker", "--verify-reproducible"),
            "--verify-reproducible",
            "the docker engine promises the same files, not the same bytes",
        ),
        (("--builder", "farm"), "--builder", "works only with the docker engine"),
        (("--base", "registry"), "--base", "works only with the docker engine"),
    ],
)
def test_an_option_that_an_engine_does_not_have_is_refused(
    tmp_path: Path, words: tuple[str, ...], where: str, message: str
) -> None:
    result = CliRunner().invoke(cli.app, ["build", str(tmp_path / "recipe.yaml"), *words])
    assert isinstance(result.exception, InputError)
    (problem,) = result.exception.problems
    assert (problem.where, problem.message) == (where, message)


def test_the_docker_engine_builds_one_platform_at_a_time(store: Store) -> None:
    plan, context = planned(store)
    wish = DockerBuild(load=True, output=None, progress="lines", as_json=False)
    with pytest.raises(InputError, match="one platform at a time") as caught:
        build_with_docker([(context.lock, plan)] * 2, store, Site(), BuildxOptions(), wish)
    assert caught.value.problems[0].hint == "name one with --platform"


def test_what_was_built_is_shown_and_goes_into_the_engine_without_an_output(
    false_docker: Path, store: Store
) -> None:
    plan, context = planned(store)
    wish = DockerBuild(load=False, output=None, progress="lines", as_json=True)
    build_with_docker([(context.lock, plan)], store, Site(), BuildxOptions(base="registry"), wish)
    told = json.loads(answer.envelope("build", 0, ()))["result"]
    assert (told["digest"], told["reference"]) == (DIGEST, f"sample:{plan.tag}")
    assert "--load" in asked(false_docker)[0]
