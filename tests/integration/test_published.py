"""What goes with a published image, held against cosign, skopeo, Docker, Podman, dpkg and pip.

The registry is one without the referrers API, so the tag that stands in for it is what is used here; the API
is tested against a registry of the tests' own.
"""

from __future__ import annotations

import base64
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from docker import DockerClient

from imagebuilder.core.process import Result, run
from imagebuilder.publish.attest import bundle, publish
from imagebuilder.registry import Client, Options, parse, reader
from imagebuilder.smoke import report as reports
from imagebuilder.store import ImageRecord, Store
from tests.integration.conftest import Built
from tests.support import alone, oci_schemas, recipes
from tests.support.answers import one_image
from tests.support.answers import result as result_of
from tests.support.proven import put_proven, report_of
from tests.support.pushing import push

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "cpu-mpi.yaml"
PROGRAM = Path(sys.executable).parent / "imagebuilder"
PASSWORD = "correct horse"


@dataclass(frozen=True, kw_only=True)
class Shop:
    """An image in a registry, pushed and signed by the command line.

    Attributes:
        repository: where it is.
        image: that it is.
        reference: what the engine knows it by.
        folder: with `ours.key`, made by openssl, and `theirs.key`, made by cosign, each with its `.pub`.

    """

    repository: str
    image: ImageRecord
    reference: str
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.image.manifest}"

    def client(self) -> Client:
        return Client(parse(self.name), Options())


def imagebuilder(*words: str | Path, check: bool = True, timeout: float = 300) -> Result:
    return run([PROGRAM, *words], timeout=timeout, check=check, env={"COSIGN_PASSWORD": PASSWORD})


def cosign(*words: str | Path, check: bool = True) -> Result:
    """Run the real cosign, with the home of nobody, so that it finds no settings and no cached keys."""
    command: list[str | Path] = ["cosign", *words, "--allow-insecure-registry"]
    return run(command, timeout=120, check=check, env={"COSIGN_PASSWORD": PASSWORD, "HOME": "/nonexistent"})


def cosign_verify(key: Path, name: str, *, check: bool = True) -> Result:
    return cosign("verify", "--key", key, "--insecure-ignore-tlog", name, check=check)


def lend(store: Store, name: str, folder: Path) -> tuple[Store, ImageRecord]:
    """Lend an image with a report of its own: what the smoke test says of it is not what is tested here."""
    lent = Store(folder)
    for kind in ("blobs", "images", "layers", "sources", "sparse"):
        (store.root / kind).mkdir(exist_ok=True)
        (lent.root / kind).symlink_to(store.root / kind)
    image = lent.image(name)
    assert image is not None
    reports.write(report_of(image), lent.report(image.manifest))
    return lent, image


@pytest.fixture(scope="module")
def lent(built: Built, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The session's store, with the report that a push asks for."""
    built(RECIPE)
    return lend(store, "cpu-mpi", tmp_path_factory.mktemp("lent"))[0]


@pytest.fixture(scope="module")
def shop(built: Built, lent: Store, registry: str, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    image = lent.image("cpu-mpi")
    assert image is not None
    folder = tmp_path_factory.mktemp("keys")
    ours = folder / "ours.key"
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    run(["openssl", "genpkey", *curve, "-out", ours], timeout=60)
    run(["openssl", "pkey", "-in", ours, "-pubout", "-out", folder / "ours.pub"], timeout=60)
    prefix = ["--output-key-prefix", str(folder / "theirs")]
    run(["cosign", "generate-key-pair", *prefix], timeout=60, env={"COSIGN_PASSWORD": PASSWORD})
    repository = f"{registry}/published/cpu-mpi"
    imagebuilder("push", "cpu-mpi", repository, "--sign-key", ours, "--store", lent.root)
    return Shop(repository=repository, image=image, reference=built(RECIPE), folder=folder)


def documents(shop: Shop) -> dict[str, bytes]:
    """Everything that is attached, by file name."""
    client = shop.client()
    found = {}
    for entry in reader.referrers(client, shop.image.manifest):
        _, manifest = reader.image_manifest(client, entry.digest)
        for layer in manifest.layers:
            found[layer.annotations["org.opencontainers.image.title"]] = reader.blob(client, layer)
    return found


def test_cosign_verifies_what_we_signed(shop: Shop) -> None:
    result = cosign_verify(shop.folder / "ours.pub", shop.name)
    (payload,) = json.loads(result.stdout)
    assert payload["critical"]["image"]["docker-manifest-digest"] == shop.image.manifest
    assert payload["critical"]["identity"]["docker-reference"] == shop.repository
    refused = cosign_verify(shop.folder / "theirs.pub", shop.name, check=False)
    assert refused.code != 0
    assert "no matching signatures" in refused.stderr


def test_cosign_verifies_every_document(shop: Shop) -> None:
    entries = reader.referrers(shop.client(), shop.image.manifest)
    assert len(entries) == 5
    for entry in entries:
        cosign_verify(shop.folder / "ours.pub", f"{shop.repository}@{entry.digest}")


def test_cosign_verifies_the_provenance_in_its_envelope(shop: Shop, lent: Store) -> None:
    words = ["--insecure-ignore-tlog", "--type", "https://slsa.dev/provenance/v1", shop.name]
    result = cosign("verify-attestation", "--key", shop.folder / "ours.pub", *words)
    envelope = json.loads(result.stdout.splitlines()[0])
    statement = base64.b64decode(envelope["payload"])
    assert statement == documents(shop)["provenance.json"]
    refused = cosign("verify-attestation", "--key", shop.folder / "theirs.pub", *words, check=False)
    assert refused.code != 0
    options = ["--store", str(lent.root), "--json", "--key", str(shop.folder / "ours.pub")]
    checks = one_image(imagebuilder("verify", shop.name, *options).stdout)["checks"]
    assert {row["name"]: row["status"] for row in checks}["attestation"] == "passed"


def test_an_attestation_of_cosign_stands_beside_ours(shop: Shop, lent: Store, tmp_path: Path) -> None:
    predicate = tmp_path / "scan.json"
    predicate.write_text('{"findings": 0}')
    kind = "https://scan.example/v1"
    options = ["--tlog-upload=false", "--yes", "--type", kind, "--predicate", str(predicate)]
    cosign("attest", "--key", shop.folder / "theirs.key", *options, shop.name)
    for wanted, key in ((kind, "theirs.pub"), ("https://slsa.dev/provenance/v1", "ours.pub")):
        words = ["--insecure-ignore-tlog", "--type", wanted, shop.name]
        cosign("verify-attestation", "--key", shop.folder / key, *words)
    words = ["--store", str(lent.root), "--key", str(shop.folder / "ours.pub")]
    assert "attestation  passed" in imagebuilder("verify", shop.name, *words).stdout


def test_we_verify_what_cosign_signed(shop: Shop, lent: Store) -> None:
    words = ["verify", shop.name, "--store", str(lent.root), "--json", "--key"]
    before = imagebuilder(*words, shop.folder / "theirs.pub", check=False)
    assert before.code == 1
    names = [shop.name]
    names += [f"{shop.repository}@{e.digest}" for e in reader.referrers(shop.client(), shop.image.manifest)]
    for name in names:
        cosign("sign", "--key", shop.folder / "theirs.key", "--tlog-upload=false", "--yes", name)
    after = one_image(imagebuilder(*words, shop.folder / "theirs.pub").stdout)
    assert after["passed"]
    statuses = {check["name"]: check["status"] for check in after["checks"]}
    # cosign signs what it is shown; the envelope of the provenance is one that our push makes.
    assert statuses.pop("attestation") == "not checked"
    assert set(statuses.values()) == {"passed"}
    # Both stand beside each other, for both programs.
    assert one_image(imagebuilder(*words, shop.folder / "ours.pub").stdout)["passed"]
    cosign_verify(shop.folder / "ours.pub", shop.name)
    cosign_verify(shop.folder / "theirs.pub", shop.name)


def test_we_sign_with_the_key_of_cosign(shop: Shop, lent: Store) -> None:
    repository = f"{shop.repository}-again"
    words = ["push", "cpu-mpi", repository, "--no-attach", "--store", str(lent.root)]
    imagebuilder(*words, "--sign-key", shop.folder / "theirs.key")
    cosign_verify(shop.folder / "theirs.pub", f"{repository}@{shop.image.manifest}")
    assert reader.referrers(Client(parse(repository), Options()), shop.image.manifest) == ()


def test_the_bill_names_what_dpkg_and_pip_find(shop: Shop, engine: DockerClient) -> None:
    def inside(*command: str) -> str:
        out: bytes = engine.containers.run(shop.reference, list(command), entrypoint="", remove=True)
        return out.decode()

    bill = json.loads(documents(shop)["sbom.cdx.json"])
    listed: dict[str, dict[str, str]] = {"deb": {}, "pypi": {}}
    for part in bill["components"]:
        listed[part["purl"].partition("/")[0].removeprefix("pkg:")][part["name"]] = part["version"]
    rows = inside("dpkg-query", "-W", "-f", "${Package} ${Version}\\n").splitlines()
    assert listed["deb"] == dict(row.split() for row in rows)
    found = json.loads(inside("python", "-m", "pip", "list", "--format", "json"))
    assert listed["pypi"] == {row["name"].lower().replace("_", "-"): row["version"] for row in found}
    spdx = json.loads(documents(shop)["sbom.spdx.json"])
    assert {(row["name"], row["versionInfo"]) for row in spdx["packages"][1:]} == {
        (part["name"], part["version"]) for part in bill["components"]
    }


def test_licences_of_a_real_image(shop: Shop) -> None:
    spdx = json.loads(documents(shop)["sbom.spdx.json"])
    declared = {row["name"]: row["licenseDeclared"] for row in spdx["packages"]}
    assert declared["mpi4py"] == "BSD-3-Clause"
    assert "Zlib" in declared["zlib1g"]
    # Free text, which nobody may guess from.
    assert declared["libopenmpi40"] == "NOASSERTION"
    known = sum(licence != "NOASSERTION" for licence in declared.values())
    assert known > len(declared) / 2


def test_the_bills_are_valid(shop: Shop, tmp_path: Path) -> None:
    found = documents(shop)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(found["sbom.cdx.json"].decode()) is None
    path = tmp_path / "sbom.spdx.json"
    path.write_bytes(found["sbom.spdx.json"])
    with warnings.catch_warnings():
        # Its parser generator is as old as it says.
        warnings.simplefilter("ignore")
        from spdx_tools.spdx.parser.parse_anything import parse_file
        from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

        assert validate_full_spdx_document(parse_file(str(path))) == []


def manifests(shop: Shop) -> Iterator[tuple[str, dict[str, Any]]]:
    client = shop.client()
    raw = client.get_manifest(shop.image.manifest)
    yield raw.digest, json.loads(raw.data)
    for entry in reader.referrers(client, shop.image.manifest):
        yield entry.digest, json.loads(client.get_manifest(entry.digest).data)


def test_manifests_are_what_the_specification_asks(shop: Shop) -> None:
    seen = list(manifests(shop))
    assert len(seen) == 6
    for _, manifest in seen:
        jsonschema.validate(manifest, oci_schemas.MANIFEST)
    index = shop.client().get_manifest(reader.fallback_tag(shop.image.manifest))
    jsonschema.validate(json.loads(index.data), oci_schemas.INDEX)
    config = reader.parse(
        reader.ImageManifest, shop.client().get_manifest(shop.image.manifest).data, "x"
    ).config
    jsonschema.validate(json.loads(reader.blob(shop.client(), config)), oci_schemas.CONFIG)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**seen[1][1], "layers": []}, oci_schemas.MANIFEST)


def test_skopeo_and_docker_take_the_image_and_its_documents(
    shop: Shop, connected: Any, tmp_path: Path
) -> None:
    for number, (digest, _) in enumerate(manifests(shop)):
        name = f"docker://{shop.repository}@{digest}"
        run(["skopeo", "copy", "--src-tls-verify=false", name, f"dir:{tmp_path / str(number)}"], timeout=120)
    client = connected.client
    pulled = client.images.pull(shop.name)
    try:
        assert shop.image.manifest in json.dumps(pulled.attrs["RepoDigests"])
    finally:
        client.images.remove(shop.name)


def test_podman_takes_an_image_with_documents(registry: str, short_folder: Path, tmp_path: Path) -> None:
    # Layers of a few bytes: without an overlay file system Podman copies all below for each of them.
    small = Store(tmp_path / "store")
    image, source = put_proven(small)
    repository = f"{registry}/published/small"
    subject = bundle.subject_of(image, small)
    documents = bundle.documents(image, small, source)
    push(image, small, repository, ["one"], attach=lambda client: publish.attach(client, subject, documents))
    folder = short_folder / "podman-pull"
    storage = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
    pull = ["podman", *storage, "pull", "--quiet", "--tls-verify=false", f"{repository}:one"]
    assert run(pull, timeout=120).stdout.strip() == image.config.removeprefix("sha256:")
    run(["podman", *storage, "rmi", "--all", "--force"], timeout=120)


def test_inspect_shows_it(shop: Shop, lent: Store) -> None:
    seen = one_image(imagebuilder("inspect", shop.name, "--json").stdout)
    assert seen["digest"] == shop.image.manifest
    assert shop.image.tag in seen["tags"]
    assert seen["pins"]["openmpi"] == "5.0.7"
    assert seen["signature"] == "present"
    assert [layer["component"] for layer in seen["layers"]] == [
        layer.component for layer in shop.image.layers
    ]
    assert {row["kind"] for row in seen["documents"]} == {
        "SPDX",
        "CycloneDX",
        "provenance",
        "report",
        "source",
    }
    text = imagebuilder("inspect", shop.name).stdout
    assert f"digest     {shop.image.manifest}" in text
    local = one_image(imagebuilder("inspect", "cpu-mpi", "--store", lent.root, "--json").stdout)
    # Who says how old it is depends on who is asked.
    assert local["age"]["source"] == "when it was built here"
    apart = {"place", "documents", "tags", "reference", "signature", "report", "reports", "age"}
    assert {key: local[key] for key in local.keys() - apart} == {
        key: seen[key] for key in seen.keys() - apart
    }


def test_pushing_again_changes_nothing(shop: Shop, lent: Store) -> None:
    before = dict(manifests(shop))
    words = ["push", "cpu-mpi", shop.repository, "--json", "--store", str(lent.root)]
    again = result_of(imagebuilder(*words, "--sign-key", shop.folder / "ours.key").stdout)
    assert (again["signed"], again["pushed_bytes"]) == (0, 0)
    assert dict(manifests(shop)) == before


def test_made_again_from_the_registry_alone(
    built: Built, store: Store, registry: str, shop: Shop, tmp_path: Path
) -> None:
    built(recipes.SMALL)
    (tmp_path / "lent").mkdir()
    lent, image = lend(store, "small", tmp_path / "lent")
    name, key = f"{registry}/published/small-recipe", shop.folder / "ours.key"
    (lent.root / "downloads").symlink_to(store.root / "downloads")
    imagebuilder("push", "small", name, "--sources", "--sign-key", key, "--store", lent.root)
    # An empty store, in a network that holds the registry alone.
    fresh = tmp_path / "fresh"
    words = ["verify", "--rebuild", f"{name}@{image.manifest}", "--json", "--store", str(fresh)]
    with alone.reaching(registry, tmp_path) as inside:
        key = shop.folder / "ours.pub"
        result = one_image(run([*inside, PROGRAM, *words, "--key", key], timeout=900).stdout)
    assert result["passed"], result
    rebuilt = result["checks"][-1]
    assert (rebuilt["name"], rebuilt["status"]) == ("rebuild", "passed")
    assert "the same digest" in rebuilt["detail"]
    assert not (fresh / "images").exists()
    assert list((fresh / "work").iterdir()) == []


def test_a_password_is_never_guessed(shop: Shop, lent: Store) -> None:
    words = ["push", "cpu-mpi", shop.repository, "--sign-key", str(shop.folder / "theirs.key")]
    wrong = run(
        [PROGRAM, *words, "--store", lent.root], timeout=120, check=False, env={"COSIGN_PASSWORD": "x"}
    )
    assert (wrong.code, "password is wrong" in wrong.stderr) == (3, True)
    command: list[str | Path] = ["env", "--unset=COSIGN_PASSWORD", PROGRAM, *words, "--store", lent.root]
    silent = run(command, timeout=120, check=False)
    assert (silent.code, "set COSIGN_PASSWORD" in silent.stderr) == (3, True)
    assert "Traceback" not in wrong.stderr + silent.stderr
