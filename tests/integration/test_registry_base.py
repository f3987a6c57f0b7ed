"""A base from a registry, from its tag to a running cluster, against a stand-in for NVIDIA's images."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from imagebuilder.bases.read import read
from imagebuilder.core import process, tarstream
from imagebuilder.host.site import detect
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import Lock
from imagebuilder.publish.attest import sbom
from imagebuilder.publish.leaks import scan
from imagebuilder.recipe import RegistryImage
from imagebuilder.registry import Client, Options, parse, reader
from imagebuilder.store import ImageRecord, Store
from tests.support import standin_base
from tests.support.answers import one_image, result
from tests.support.fileserver import serving
from tests.support.planted import Maker
from tests.support.servers import free_port, registry_server
from tests.support.standin_base import Layer, Pusher, Signer

PROGRAM = Path(sys.executable).parent / "imagebuilder"
TAG = "12.8.1-base-debian13"
RECIPE = f"""
name: on-a-base
base: {{image: "nvidia/cuda:{TAG}"}}
python: "3.13"
pins:
  cuda: "12.8"
  cudnn: "9.10"
  nccl: "2.26"
  openmpi: "5.0.7"
ssh: {{port: 2222, user: trainer}}
pip: ["mpi4py==4.1.1", "numpy"]
"""
ENV = [
    "PATH=/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "CUDA_VERSION=12.8.1",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.8",
]


@dataclass(frozen=True, kw_only=True)
class World:
    """The registry, and this site's settings; `layers` are the base's as they were pushed."""

    host: str
    folder: Path
    site: Path
    layers: tuple[Layer, ...]
    pusher: Pusher
    manifest: str


@dataclass(frozen=True, kw_only=True)
class Made:
    """The image that was built in that world."""

    recipe: Path
    lock: Lock
    image: ImageRecord
    store: Store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("base")
    for part in ("debs", "registry"):
        (folder / part).mkdir()
    debs = standin_base.make_packages(folder / "debs")
    signer = Signer(folder / "gpg")
    debian = standin_base.minimal_debian(store.root / "bases")
    with serving() as server, registry_server(folder / "registry") as registry:
        standin_base.serve_archive(server, debs, signer)
        deb = debs["cuda-cudart-12-8", "12.8.57-1"]
        layers = (
            standin_base.layer(debian),
            *standin_base.nvidia_layers(debian, deb, signer.public.read_bytes()),
        )
        pusher = Pusher(registry.url, "nvidia/cuda")
        run: dict[str, Any] = {"Env": ENV, "Labels": {"maintainer": "nobody"}, "Entrypoint": ["/nothing"]}
        config = standin_base.config_of(layers, "amd64", **run)
        manifest = pusher.image(layers, config)
        # What is attached to images stands in their lists as an unknown platform.
        pusher.index({"unknown/unknown": manifest, "linux/amd64": manifest}, TAG)
        site = folder / "site.yaml"
        site.write_text(
            f"registries:\n  docker.io: {{mirror: '{registry.host}'}}\n"
            f"apt:\n  archives:\n    nvidia-cuda: {{url: '{server.url}/cuda'}}\n"
        )
        yield World(
            host=registry.host,
            folder=folder,
            site=site,
            layers=layers,
            pusher=pusher,
            manifest=manifest["digest"],
        )
        signer.close()


def imagebuilder(*words: str | Path, code: int = 0) -> process.Result:
    result = process.run([PROGRAM, *words], timeout=900, check=False)
    assert result.code == code, f"{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def made(world: World, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("image")
    recipe = folder / "on-a-base.yaml"
    recipe.write_text(RECIPE)
    own = Store(folder / "store")
    own.root.mkdir()
    (store.root / "downloads").mkdir(parents=True, exist_ok=True)
    (own.root / "downloads").symlink_to(store.root / "downloads")
    imagebuilder("build", recipe, "--site", world.site, "--store", own.root, "--progress", "lines")
    image = own.image("on-a-base")
    assert image is not None
    yield Made(recipe=recipe, lock=lockfile.read(locks.path_for(recipe)).sections[0], image=image, store=own)
    shutil.rmtree(own.root)


def manifest_of(made: Made) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.store.blob(made.image.manifest).read_bytes())
    return found


def config_of(made: Made) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.store.blob(made.image.config).read_bytes())["config"]
    return found


def os_layer(made: Made) -> dict[str, tarfile.TarInfo]:
    blob = made.store.blob(made.image.layers[3].record.digest)
    with tarstream.open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        return {member.name: member for member in tar}


def test_the_base_s_layers_are_unchanged_and_named_as_oci_has_them(made: Made, world: World) -> None:
    pushed = [standin_base.digest(layer.blob) for layer in world.layers]
    layers = manifest_of(made)["layers"]
    assert [layer["digest"] for layer in layers[:3]] == pushed
    kinds = [layer["mediaType"].rpartition("+")[2] for layer in layers[:3]]
    assert kinds == ["gzip", "zstd", "gzip"]
    assert all(layer["mediaType"].startswith("application/vnd.oci.") for layer in layers)


def test_the_lock_names_the_base_by_digest_and_no_host(made: Made, world: World) -> None:
    image = made.lock.image
    assert image is not None
    assert (image.name, image.digest) == (f"nvidia/cuda:{TAG}", world.manifest)
    assert image.index not in {"", image.digest}
    assert made.lock.base == "debian:trixie"
    text = locks.path_for(made.recipe).read_text()
    assert world.host not in text
    assert "127.0.0.1" not in text
    assert "://" not in text


def test_only_what_the_base_lacks_is_added_and_held_packages_stay(made: Made) -> None:
    added = {deb.name: deb for deb in made.lock.debs}
    assert not {"libc6", "bash", "apt", "cuda-cudart-12-8"} & added.keys()
    assert added["libnccl2"].version == "2.26.2-1+cuda12.8"
    assert (added["libnccl2"].archive, added["openssh-server"].archive) == ("nvidia-cuda", "")
    pins = made.lock.pins
    assert (pins["cuda"], pins["cudnn"], pins["nccl"]) == ("12.8.57", "9.10.2.21", "2.26.2")


def test_the_layer_on_top_holds_the_difference_alone(made: Made) -> None:
    members = os_layer(made)
    assert {"usr/lib/x86_64-linux-gnu/libnccl2.so", "usr/sbin/sshd", "var/lib/dpkg/status"} <= members.keys()
    unchanged = ("usr/bin/bash", "usr/lib/x86_64-linux-gnu/libc.so.6", "opt/base-tool", "etc/debian_version")
    assert not [path for path in unchanged if path in members]
    passing = (
        "tmp/",
        "run/",
        "dev/",
        "proc/",
        "sys/",
        "var/cache/apt/",
        "var/lib/apt/lists/",
        "imagebuilder",
    )
    assert not [path for path in members if path.startswith(passing)]
    logs = [path for path, member in members.items() if path.startswith("var/log/") and member.isfile()]
    assert logs == []
    assert {member.mtime for member in members.values()} == {0}
    # Every folder stands before what is in it, with its own mode.
    names = list(members)
    assert all(name.rpartition("/")[0] in names[:number] for number, name in enumerate(names) if "/" in name)


def test_modules_are_compiled_by_the_packages_python_on_the_base_s_libraries(made: Made) -> None:
    assert "libc6" not in {deb.name for deb in made.lock.debs}
    blobs = [made.store.blob(layer.record.digest) for layer in made.image.layers if "bytecode" in layer.title]
    names: list[str] = []
    for blob in blobs:
        with tarfile.open(blob) as tar:
            names += tar.getnames()
    site = "opt/venv/lib/python3.13/site-packages"
    assert f"{site}/numpy/__pycache__/__init__.cpython-313.pyc" in names
    assert len(names) > 500


def test_the_config_is_ours_over_the_base_s(made: Made) -> None:
    config = config_of(made)
    env = dict(item.split("=", 1) for item in config["Env"])
    assert env["PATH"].startswith("/opt/venv/bin:")
    assert env["PATH"].endswith(":/usr/local/nvidia/bin")
    assert env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert env["CUDA_VERSION"] == "12.8.1"
    assert "tini" in config["Entrypoint"][0]
    assert config["User"] == "1000:0"
    labels = config["Labels"]
    assert labels["maintainer"] == "nobody"
    assert labels["org.opencontainers.image.base.name"] == f"nvidia/cuda:{TAG}"
    assert labels["org.opencontainers.image.base.digest"] == made.lock.image.digest  # type: ignore[union-attr]


def test_it_runs_and_holds_what_it_says(made: Made, engine: DockerClient, world: World) -> None:
    """Docker reads all layers, zstd and whiteouts too; then two nodes prove ssh and MPI.

    The stand-in's libraries are no libraries, which the probes find out: that check alone fails.
    """
    words = ("--site", world.site, "--store", made.store.root, "--json")
    said = imagebuilder("smoke-test", made.recipe, "--mode", "cpu", *words, code=1).stdout
    status = {check["name"]: check["status"] for check in result(said)["checks"]}
    assert [name for name in status if status[name] == "failed"] == ["pins"]
    assert {status[name] for name in ("contents", "link", "ssh", "environment", "mpirun")} == {"passed"}
    reference = f"on-a-base:{made.image.tag}"
    script = (
        "set -e; test ! -e /usr/share/doc/apt/copyright; cat /usr/lib/x86_64-linux-gnu/libnccl2.so; "
        'test -e /opt/base-tool; test -z "$(dpkg --audit)"; '
        "apt-mark showhold; python -c 'import sys; print(sys.prefix)'; id -un"
    )
    try:
        out = engine.containers.run(reference, ["sh", "-c", script], remove=True).decode()
    finally:
        engine.images.remove(reference, force=True)
    assert out.splitlines() == ["libnccl2 2.26.2-1+cuda12.8", "cuda-cudart-12-8", "/opt/venv", "trainer"]


def test_a_push_beside_the_base_links_its_layers(made: Made, world: World) -> None:
    words = ("--untested", "--store", made.store.root, "--site", world.site, "--json")
    pushed = result(imagebuilder("push", made.recipe, f"{world.host}/team/image", *words).stdout)
    assert pushed["mounted_blobs"] == 3
    tag = f"{made.image.name}-{made.image.tag}"
    assert pushed["tags"][0] == tag
    client = Client(parse(f"{world.host}/team/image:{tag}"), Options())
    assert reader.image_manifest(client, tag)[0].digest == made.image.manifest
    verified = imagebuilder("verify", f"{world.host}/team/image:{tag}", "--json", code=1).stdout
    checks = {check["name"]: check for check in one_image(verified)["checks"]}
    # It was not tested, and says so; all that was said about packages holds.
    assert {name for name, check in checks.items() if check["status"] == "failed"} <= {"report", "signature"}
    inspected = imagebuilder("inspect", f"{world.host}/team/image:{tag}").stdout
    assert f"nvidia/cuda:{TAG}@{world.manifest}" in inspected


def test_the_bill_of_materials_has_the_base_s_packages(made: Made) -> None:
    material = sbom.Material(
        name="x", digest=made.image.manifest, tag="x", lock=made.lock, debs={}, wheels={}, created=0
    )
    for document in (sbom.spdx(material), sbom.cyclonedx(material)):
        found = sbom.contents(json.loads(document))
        assert found == sbom.expected(made.lock)
        names = {purl.partition("@")[0] for purl, _ in found}
        assert {"pkg:deb/debian/bash", "pkg:deb/debian/cuda-cudart-12-8", "pkg:pypi/numpy"} <= names


# What cannot be a base, and what is said of it. None of it needs more than the registry.


def refusal(world: World, tmp_path: Path, image: str, *, code: int, digest: str = "") -> str:
    recipe = tmp_path / "refused.yaml"
    base = f'{{image: "{image}"' + (f', digest: "{digest}"}}' if digest else "}")
    recipe.write_text(f'name: refused\nbase: {base}\npython: "3.13"\n')
    words = ("--site", world.site, "--store", tmp_path / "store")
    said = imagebuilder("lock", recipe, *words, code=code).stderr
    assert not locks.path_for(recipe).exists()
    assert "Traceback" not in said
    assert "refused.yaml:2: base.image: " in said
    assert "\n  -> " in said
    return said


def test_a_tag_that_is_gone(world: World, tmp_path: Path) -> None:
    said = refusal(world, tmp_path, "nvidia/cuda:gone", code=9)
    assert "the registry has no such image" in said
    assert "nvidia/cuda" in said


def test_a_digest_that_the_registry_does_not_have(world: World, tmp_path: Path) -> None:
    said = refusal(world, tmp_path, f"nvidia/cuda:{TAG}", code=9, digest=f"sha256:{'0' * 64}")
    assert f"base.image: nvidia/cuda:{TAG}: the registry has no such image" in said
    assert "check the tag or the digest" in said


def test_a_registry_that_is_not_there(world: World, tmp_path: Path) -> None:
    said = refusal(world, tmp_path, f"127.0.0.1:{free_port()}/team/base:1", code=9)
    assert "nothing listens at 127.0.0.1" in said


def test_a_base_of_another_architecture(world: World, tmp_path: Path) -> None:
    layers = [standin_base.layer(standin_base.tar_of({"etc/x": b"x"}))]
    arm = world.pusher.image(layers, standin_base.config_of(layers, "arm64"), "arm")
    world.pusher.index({"linux/arm64": arm, "windows/amd64": arm}, "others")
    said = refusal(world, tmp_path, "nvidia/cuda:others", code=9)
    assert "there is no image for linux/amd64" in said
    assert "linux/arm64, windows/amd64" in said
    said = refusal(world, tmp_path, "nvidia/cuda:arm", code=9)
    assert "is an image for linux/arm64, not for linux/amd64" in said


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"etc/os-release": b'ID=alpine\nPRETTY_NAME="Alpine Linux v3.22"\n'}, "it holds Alpine Linux v3.22"),
        ({"etc/x": b"x"}, "does not say which system it holds"),
        ({"etc/os-release": b"ID=debian\nVERSION_CODENAME=buster\n"}, "holds debian buster"),
        ({"etc/os-release": b"ID=debian\nVERSION_CODENAME=trixie\n"}, "has no dpkg"),
    ],
)
def test_a_base_without_a_known_system(
    files: dict[str, bytes | str | None], message: str, world: World, tmp_path: Path
) -> None:
    layers = [standin_base.layer(standin_base.tar_of(files), "tar")]
    world.pusher.image(layers, standin_base.config_of(layers), "strange")
    assert message in refusal(world, tmp_path, "nvidia/cuda:strange", code=3)


def test_a_layer_that_is_not_what_the_config_says(world: World, tmp_path: Path) -> None:
    layer = standin_base.layer(standin_base.tar_of({"etc/x": b"y"}))
    lying = dataclasses.replace(layer, diff_id=f"sha256:{'1' * 64}")
    world.pusher.image([lying], standin_base.config_of([lying]), "lying")
    assert "holds a tar with the digest" in refusal(world, tmp_path, "nvidia/cuda:lying", code=7)


def test_bytes_that_are_not_those_of_the_digest(world: World, tmp_path: Path) -> None:
    layers = [standin_base.layer(standin_base.tar_of({"etc/z": b"tampered"}))]
    world.pusher.image(layers, standin_base.config_of(layers), "tampered")
    name = standin_base.digest(layers[0].blob).removeprefix("sha256:")
    (data,) = (world.folder / "registry").rglob(f"sha256/*/{name}/data")
    other = gzip.compress(b"other bytes", mtime=0)
    data.write_bytes(other.ljust(len(layers[0].blob), b"\0")[: len(layers[0].blob)])
    assert f"wanted sha256 {name}, got " in refusal(world, tmp_path, "nvidia/cuda:tampered", code=6)


def test_the_base_of_a_lock_stays_until_it_is_to_move(world: World, tmp_path: Path) -> None:
    wanted = RegistryImage(image="nvidia/cuda:moving")
    site, store = detect(world.site), Store(tmp_path / "store")
    layers = world.layers
    before = world.pusher.image(layers, standin_base.config_of(layers, Env=[*ENV, "A=1"]), "moving")
    first = read(wanted, "amd64", site, store).image
    after = world.pusher.image(layers, standin_base.config_of(layers, Env=[*ENV, "A=2"]), "moving")
    assert read(wanted, "amd64", site, store, first).image == first
    moved = read(wanted, "amd64", site, store).image
    assert (first.digest, moved.digest) == (before["digest"], after["digest"])
    pinned = RegistryImage(image="nvidia/cuda:moving", digest=before["digest"])
    assert read(pinned, "amd64", site, store, moved).image == first


def test_what_leaks_in_a_layer_of_the_base_is_told_with_that_layer(made: Made, tmp_path: Path) -> None:
    first = made.image.layers[0]
    secret = Maker(3, tmp_path).all()["OpenSSH key"]
    bad = standin_base.layer(standin_base.tar_of({secret.path: secret.text}), "zstd")
    with made.store.writer() as writer:
        writer.write(bad.blob)
        digest, size = writer.commit()
    record = dataclasses.replace(first.record, digest=digest, size=size, diff_id=bad.diff_id)
    layers = (dataclasses.replace(first, record=record), *made.image.layers[1:])
    found = scan(dataclasses.replace(made.image, layers=layers), made.store).findings
    assert [title for title, finding in found if "id_ed25519" in finding.path] == [first.title]
