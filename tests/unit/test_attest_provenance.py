from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.errors import InputError, StoreError
from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import bundle, provenance
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import source as sources
from imagebuilder.workflow.source import RecipeSource
from tests.support.proven import put_proven


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> ImageRecord:
    return put_proven(store)[0]


@pytest.fixture
def source(store: Store, image: ImageRecord) -> RecipeSource:
    del store, image
    return sources.of_recipe(Path(__file__).parents[2] / "recipes" / "cpu-mpi.yaml")


def files(documents: tuple[bundle.ImageDocument, ...]) -> dict[str, bytes]:
    return {name: data for document in documents for name, data in document.files.items()}


def test_a_statement_names_what_went_in_and_came_out(
    store: Store, image: ImageRecord, source: RecipeSource
) -> None:
    documents = files(bundle.documents(image, store, source, ("untested",)))
    statement: dict[str, Any] = json.loads(documents["provenance.json"])
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [
        {"name": "cpu-mpi", "digest": {"sha256": image.manifest.removeprefix("sha256:")}}
    ]
    claim = provenance.read(statement)
    assert claim.recipe == hashlib.sha256(source.recipe.encode()).hexdigest()
    assert claim.lock == hashlib.sha256(source.lock.encode()).hexdigest()
    assert lockfile.loads(source.lock, "recipe.lock").checksum == image.lock
    assert [layer.digest for layer in claim.layers] == [layer.record.digest for layer in image.layers]
    assert [layer.component for layer in claim.layers] == [layer.component for layer in image.layers]
    assert claim.waivers == ("untested",)
    named = {"sbom.spdx.json", "sbom.cdx.json", "smoke-report.json"}
    assert claim.byproducts == {name: hashlib.sha256(documents[name]).hexdigest() for name in named}
    lock, _ = source.read()
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    packages = [row["digest"]["sha256"] for row in dependencies[2:]]
    assert packages == [*(deb.sha256 for deb in lock.debs), *(wheel.sha256 for wheel in lock.wheels)]


def test_the_same_documents_again(store: Store, image: ImageRecord, source: RecipeSource) -> None:
    once = bundle.documents(image, store, source)
    assert bundle.documents(image, store, source) == once
    subject = bundle.subject_of(image, store)
    manifests = [document.artefact(subject).manifest() for document in once]
    assert len(set(manifests)) == len(once) == 5


def test_no_report_is_no_document(store: Store, image: ImageRecord, source: RecipeSource) -> None:
    store.report(image.manifest).unlink()
    kinds = [document.kind for document in bundle.documents(image, store, source)]
    assert bundle.REPORT not in kinds
    assert len(kinds) == 4


def test_a_report_of_another_image_is_refused(store: Store, image: ImageRecord, source: RecipeSource) -> None:
    path = store.report(image.manifest)
    other = f"sha256:{'0' * 64}"
    path.write_text(path.read_text().replace(image.manifest, other).replace(image.config, other))
    with pytest.raises(InputError, match="another image"):
        bundle.documents(image, store, source)


def test_layers_that_recipe_and_lock_do_not_give(
    store: Store, image: ImageRecord, source: RecipeSource
) -> None:
    first, *rest = image.layers
    other = dataclasses.replace(first, record=rest[0].record)
    with pytest.raises(StoreError, match="not those that its recipe and lock give"):
        bundle.documents(dataclasses.replace(image, layers=(other, *rest)), store, source)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(_type="x"),
        lambda s: s.update(predicateType="x"),
        lambda s: s.update(subject=[]),
        lambda s: s.update(predicate=None),
        lambda s: s["predicate"]["buildDefinition"].update(buildType="x"),
        lambda s: s["predicate"]["runDetails"].update(byproducts=[1]),
        lambda s: s["predicate"]["buildDefinition"].update(resolvedDependencies=[]),
    ],
)
def test_statements_of_others_are_told_apart(
    store: Store, image: ImageRecord, source: RecipeSource, change: Any
) -> None:
    statement = json.loads(files(bundle.documents(image, store, source))["provenance.json"])
    change(statement)
    with pytest.raises(ValueError, match=r"statement|another tool|not enough values"):
        provenance.read(statement)


def test_sources_are_kept_beside_the_image(store: Store, image: ImageRecord, source: RecipeSource) -> None:
    with pytest.raises(InputError, match="does not know which recipe"):
        sources.find(image.name, image, store)
    sources.remember(store, image.manifest, source)
    assert sources.find(image.name, image, store) == source
    store.source(image.manifest).write_text("[]")
    with pytest.raises(InputError, match="damaged"):
        sources.recall(store, image)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("1700000000", 1_700_000_000)])
def test_the_claimed_time(text: str, seconds: int) -> None:
    assert bundle.claimed_time({}) == 0
    assert bundle.claimed_time({"SOURCE_DATE_EPOCH": text}) == seconds


@pytest.mark.parametrize("text", ["", "-1", "now", "1e3", "9" * 40, "\u0663"])
def test_a_claimed_time_is_seconds(text: str) -> None:
    with pytest.raises(InputError, match="not a number of seconds"):
        bundle.claimed_time({"SOURCE_DATE_EPOCH": text})
