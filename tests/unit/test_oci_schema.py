"""Everything that leaves as an OCI document, held against the specification's tables."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec

from imagebuilder.image import layout, oci
from imagebuilder.publish.attest import bundle, envelope, publish, signature
from imagebuilder.registry import Client, Options, parse, reader
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.store import ImageRecord, Store
from tests.support import oci_schemas as schemas
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.proven import put_proven
from tests.support.pushing import push

OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def image(store: Store) -> ImageRecord:
    return put_proven(store)[0]


@pytest.fixture(scope="module")
def published(store: Store, image: ImageRecord) -> Iterator[FakeRegistry]:
    """A registry with the image, all that is attached to it, signatures and attestation."""
    _, source = put_proven(store)
    key = ec.generate_private_key(ec.SECP256R1())
    with serve(FakeRegistry()) as registry:
        subject, documents = bundle.subject_of(image, store), bundle.documents(image, store, source)
        push(
            image,
            store,
            f"{registry.host}/x",
            ["one"],
            options=OPTIONS,
            attach=lambda client: publish.attach(client, subject, documents, key),
        )
        yield registry


def blob(store: Store, digest: str) -> Any:
    return json.loads(store.blob(digest).read_bytes())


def test_the_image(store: Store, image: ImageRecord) -> None:
    manifest, config = blob(store, image.manifest), blob(store, image.config)
    jsonschema.validate(manifest, schemas.MANIFEST)
    jsonschema.validate(config, schemas.CONFIG)
    # What config.md says beyond its tables: a diffID and a line of history for each layer.
    made = [row for row in config["history"] if not row.get("empty_layer")]
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == len(made)


def test_the_layout(store: Store, image: ImageRecord, tmp_path: Path) -> None:
    layout.export(image, store, tmp_path / "image")
    jsonschema.validate(json.loads((tmp_path / "image" / "oci-layout").read_bytes()), schemas.LAYOUT)
    index = json.loads((tmp_path / "image" / "index.json").read_bytes())
    jsonschema.validate(index, schemas.INDEX)
    for entry in index["manifests"]:
        path = tmp_path / "image" / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")
        assert path.stat().st_size == entry["size"]


def test_an_index_of_platforms() -> None:
    entries = [
        oci.IndexEntry(platform=f"linux/{name}", digest="sha256:" + digit * 64, size=5, labels={"a": "b"})
        for name, digit in (("amd64", "a"), ("arm64", "b"))
    ]
    jsonschema.validate(json.loads(oci.index_document(entries, "c" * 64)), schemas.INDEX)


def test_what_is_attached(published: FakeRegistry, image: ImageRecord) -> None:
    client = Client(parse(f"{published.host}/x"), OPTIONS)
    entries = reader.referrers(client, image.manifest)
    assert len(entries) == 5
    for entry in entries:
        manifest = json.loads(client.get_manifest(entry.digest).data)
        jsonschema.validate(manifest, schemas.MANIFEST)
        assert manifest["artifactType"] == entry.artifact_type
        assert manifest["subject"]["digest"] == image.manifest


def test_everything_that_a_registry_gets(published: FakeRegistry, image: ImageRecord) -> None:
    """The list that stands in for the referrers API, signatures and attestations too."""
    tags = set()
    for (_, name), (media_type, data) in published.manifests.items():
        document = json.loads(data)
        jsonschema.validate(document, schemas.INDEX if "index" in media_type else schemas.MANIFEST)
        assert document["mediaType"] == media_type
        tags |= {name} if ":" not in name else set()
    wanted = {reader.fallback_tag(image.manifest), signature.tag_of(image.manifest)}
    assert {"one", envelope.tag_of(image.manifest), *wanted} <= tags


def _without(path: str) -> Any:
    def change(document: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            document = document[int(step) if step.isdigit() else step]
        del document[last]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("schemaVersion"),
        _without("mediaType"),
        _without("config.size"),
        _without("layers.0.digest"),
        lambda manifest: manifest.update(layers=[]),
        lambda manifest: manifest["layers"][0].update(size=-1),
        lambda manifest: manifest["layers"][0].update(digest="sha256:x"),
        lambda manifest: manifest["config"].update(mediaType="application/vnd.oci.empty.v1+json"),
        lambda manifest: manifest.update(Layers=[]),
    ],
)
def test_the_schema_of_manifests_refuses(store: Store, image: ImageRecord, change: Any) -> None:
    manifest = copy.deepcopy(blob(store, image.manifest))
    change(manifest)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, schemas.MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        _without("rootfs"),
        _without("os"),
        lambda config: config["config"].update(Env=["A"]),
        lambda config: config["config"].update(ExposedPorts={"ssh": {}}),
        lambda config: config.update(created="today"),
        lambda config: config["rootfs"].update(diff_ids=["x"]),
    ],
)
def test_the_schema_of_configs_refuses(store: Store, image: ImageRecord, change: Any) -> None:
    config = copy.deepcopy(blob(store, image.config))
    change(config)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schemas.CONFIG)
