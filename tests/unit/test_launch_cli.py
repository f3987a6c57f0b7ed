"""`launch` on the command line: images of the store and of registries, overlays, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.host.site import detect
from imagebuilder.launch import image as images
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST
from imagebuilder.store import ImageRecord, Store
from tests.support import proven
from tests.support.fake_registry import FakeRegistry, serve
from tests.unit import launching

REPOSITORY = "registry.example/team/cpu"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, ImageRecord]:
    store = Store(tmp_path_factory.mktemp("store"))
    image, _ = proven.put_proven(store)
    return store, image


def launch(built: tuple[Store, ImageRecord], *words: str | Path) -> Any:
    line = ["launch", str(proven.RECIPE), "--store", str(built[0].root), *map(str, words)]
    return CliRunner().invoke(app, line)


def test_a_recipes_image_is_named_by_its_digest(built: tuple[Store, ImageRecord]) -> None:
    options = ("--repository", REPOSITORY, "--target", "mpijob", "--nodes", "3")
    result = launch(built, *options, "--", "python", "train.py", "--nodes", "9")
    assert result.exit_code == 0, result.output
    found = yaml.safe_load(result.stdout)
    replicas = found["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["image"] == f"{REPOSITORY}@{built[1].manifest}"
    assert launcher["args"][-4:] == ["python", "train.py", "--nodes", "9"]
    assert (replicas["Worker"]["replicas"], found["metadata"]["name"]) == (3, "cpu-mpi")


def test_a_folder_is_written(built: tuple[Store, ImageRecord], tmp_path: Path) -> None:
    options = ("--repository", REPOSITORY, "--target", "jobset", "--output", tmp_path / "job")
    result = launch(built, *options, "--namespace", "team", "--", "true")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"next: cd {tmp_path}/job && kubectl create -f .\n"
    secret = yaml.safe_load((tmp_path / "job" / "keys.yaml").read_text())
    assert secret["metadata"] == {"name": "cpu-mpi-ssh", "namespace": "team"}
    assert ((tmp_path / "job" / "keys.yaml").stat().st_mode & 0o777) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"]


REFUSED = {
    "no repository": (
        ("--target", "mpijob", "--", "true"),
        "is in the store, where no other host can pull it",
    ),
    "no target": (("--repository", REPOSITORY, "--", "true"), "is missing: it says what runs the job"),
    "a tag": (
        ("--repository", f"{REPOSITORY}:1", "--target", "mpijob", "--", "true"),
        "must be a repository: the digest is the image's own",
    ),
    "no command": (("--repository", REPOSITORY, "--target", "mpijob"), "no command is given"),
    "no torch": (
        ("--repository", REPOSITORY, "--target", "pytorchjob", "--", "true"),
        "the target pytorchjob does not start mpirun",
    ),
    "another launcher": (
        ("--repository", REPOSITORY, "--target", "mpijob", "--launcher", "torchrun", "--", "true"),
        "`torchrun` is not in the image: choose mpirun",
    ),
    "a command and the smoke test": (
        ("--repository", REPOSITORY, "--target", "mpijob", "--smoke", "--", "true"),
        "runs its own command: leave yours out",
    ),
    "a missing overlay": (
        ("--repository", REPOSITORY, "--target", "mpijob", "-f", "/nowhere.yaml", "--", "true"),
        "cannot be read: No such file or directory",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_and_writes_nothing(
    case: str, built: tuple[Store, ImageRecord], tmp_path: Path
) -> None:
    words, message = REFUSED[case]
    result = launch(built, "--output", tmp_path / "job", *words)
    assert isinstance(result.exception, InputError)
    assert result.exception.problems[0].message.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_the_smoke_test_is_launched(built: tuple[Store, ImageRecord]) -> None:
    result = launch(built, "--repository", REPOSITORY, "--target", "mpijob", "--smoke")
    assert result.exit_code == 0, result.output
    (launcher,) = yaml.safe_load(result.stdout)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"][
        "containers"
    ]
    assert launcher["args"][-3:-1] == ["python", "-c"]
    assert "/job.py" in launcher["args"][-1]


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as found:
        yield found


def put(registry: FakeRegistry, tag: str, document: Any, kind: str = OCI_MANIFEST) -> str:
    data = json.dumps(document).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    for name in (tag, digest):
        registry.manifests["team/x", name] = (kind, data)
    return digest


def put_image(registry: FakeRegistry, tag: str, architecture: str, config: Any) -> str:
    raw = json.dumps({"os": "linux", "architecture": architecture, "config": config}).encode()
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    registry.blobs["team/x", digest] = raw
    descriptor = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": len(raw)}
    return put(registry, tag, {"schemaVersion": 2, "config": descriptor, "layers": []})


def read(registry: FakeRegistry, name: str, platform: str = "") -> images.LaunchImage:
    return images.from_registry(f"{registry.host}/{name}", detect(), platform=platform)


def test_a_tag_of_a_registry_becomes_a_digest(registry: FakeRegistry) -> None:
    digest = put_image(registry, "1", "amd64", launching.config())
    found = read(registry, "team/x:1")
    assert found.reference == f"{registry.host}/team/x@{digest}"
    assert found.pullable
    assert read(registry, f"team/x@{digest}") == found
    with pytest.raises(InputError, match=r"is for linux/amd64, not for linux/arm64"):
        read(registry, "team/x:1", "linux/arm64")


def test_an_index_stays_one_unless_a_platform_is_named(registry: FakeRegistry) -> None:
    entries = [
        {
            "mediaType": OCI_MANIFEST,
            "digest": put_image(registry, name, name, launching.config()),
            "size": 1,
            "platform": {"os": "linux", "architecture": name},
        }
        for name in ("amd64", "arm64")
    ]
    whole = put(registry, "all", {"schemaVersion": 2, "manifests": entries}, OCI_INDEX)
    assert read(registry, "team/x:all").digest == whole
    assert read(registry, "team/x:all", "linux/arm64").digest == entries[1]["digest"]
    # A report is about one image.
    alone = images.from_registry(f"{registry.host}/team/x:all", detect(), one=True).digest
    assert alone in {entry["digest"] for entry in entries}
    with pytest.raises(InputError, match=r"has no image for linux/riscv64\n  -> it has linux/amd64 and"):
        read(registry, "team/x:all", "linux/riscv64")
    put(registry, "none", {"schemaVersion": 2, "manifests": []}, OCI_INDEX)
    with pytest.raises(RegistryError, match="names no images for any platform"):
        read(registry, "team/x:none")


@pytest.mark.parametrize("config", [None, [], {"Labels": []}, {"Labels": {"a": 1}}])
def test_a_hostile_config_of_a_registry_is_refused(registry: FakeRegistry, config: Any) -> None:
    put_image(registry, "1", "amd64", config)
    with pytest.raises(InputError, match="this is not an image of imagebuilder"):
        read(registry, "team/x:1")


def test_a_repository_without_a_tag_is_no_image(registry: FakeRegistry) -> None:
    with pytest.raises(InputError, match="names a repository, not an image"):
        read(registry, "team/x")
