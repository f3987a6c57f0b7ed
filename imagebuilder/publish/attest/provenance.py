"""Provenance of an image: SLSA provenance 1.0 in an in-toto statement 1.0. Pure.

https://slsa.dev/spec/v1.0/provenance and https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
It has neither the time nor the machine of the build, so the same recipe and lock give the same statement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder import __version__
from imagebuilder.errors import StoreError
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Plan
from imagebuilder.publish.attest.sbom import image_purl, purl
from imagebuilder.store import ImageLayer, ImageRecord, LayerRecord
from imagebuilder.workflow.source import RecipeSource

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:imagebuilder:build:1"
RECIPE, LOCK = "recipe.yaml", "recipe.lock"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The content of a statement.

    Attributes:
        image: the subject.
        plan, lock: what the image was made from.
        source: recipe and lock as text.
        records: the layers of the plan in the store, in order.
        waivers: names of the gates that were waived when the image was pushed.
        byproducts: name and bytes of the other documents of the image.

    """

    image: ImageRecord
    plan: Plan
    lock: Lock
    source: RecipeSource
    records: tuple[LayerRecord | None, ...]
    waivers: tuple[str, ...] = ()
    byproducts: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The checked parts of a published statement, which is untrusted.

    Attributes:
        subject: digest of the image's manifest.
        tool: version of imagebuilder.
        engine: the engine that made the layers.
        recipe, lock: hex sha256 of both files.
        layers: the lowest first.
        waivers: gates that were waived.
        byproducts: name and hex sha256 of the other documents.

    """

    subject: str
    tool: str
    engine: str
    recipe: str
    lock: str
    layers: tuple[ClaimedLayer, ...]
    waivers: tuple[str, ...]
    byproducts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ClaimedLayer:
    """A layer in a statement: its key in the plan, the digest of the blob, and that of the tar (diffID)."""

    title: str
    component: str
    key: str
    digest: str
    diff_id: str


def statement(origin: Origin) -> bytes:
    """Make the statement.

    Raises:
        StoreError: this version makes other layers from recipe and lock.

    """
    image, lock = origin.image, origin.lock
    if len(origin.records) != len(image.layers) or not all(map(_gives, origin.records, image.layers)):
        raise StoreError(
            f"the layers of {image.name} are not those that its recipe and lock give",
            hint="another version of imagebuilder built it: build it again, then push",
        )
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": RECIPE, "lock": LOCK},
            "internalParameters": {
                "architecture": lock.architecture,
                "base": lock.base,
                "python": lock.python,
                "pins": dict(sorted(lock.pins.items())),
            },
            "resolvedDependencies": [
                _file(RECIPE, origin.source.recipe.encode()),
                _file(LOCK, origin.source.lock.encode()),
                *_base(lock),
                # With the packages that are needed only to compile a component.
                *(
                    {"name": file.name, "uri": purl(file, lock.base), "digest": {"sha256": file.sha256}}
                    for file in lock.files
                ),
            ],
        },
        "runDetails": {
            "builder": {
                "id": "urn:imagebuilder:engine:embedded",
                "version": {"imagebuilder": __version__},
            },
            "metadata": {"imagebuilder_waivers": sorted(origin.waivers)},
            "byproducts": [
                *_layers(origin),
                *(_file(name, data) for name, data in sorted(origin.byproducts.items())),
            ],
        },
    }
    document = {
        "_type": STATEMENT,
        "subject": [{"name": image.name, "digest": {"sha256": image.manifest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def read(document: Mapping[str, Any]) -> Claim:
    """Parse a published statement, which is untrusted.

    Raises:
        ValueError: it is not a statement by imagebuilder.

    """
    try:
        if document["_type"] != STATEMENT or document["predicateType"] != PREDICATE:
            raise ValueError(f"is not a statement of {PREDICATE}")
        definition, run = document["predicate"]["buildDefinition"], document["predicate"]["runDetails"]
        if definition["buildType"] != BUILD_TYPE:
            raise ValueError("is about a build by another tool")
        inputs = {str(row["name"]): _sha256(row) for row in definition["resolvedDependencies"][:2]}
        rows = run["byproducts"]
        (about,) = document["subject"]
        return Claim(
            subject=f"sha256:{_sha256(about)}",
            tool=str(run["builder"]["version"]["imagebuilder"]),
            engine=str(run["builder"]["id"]).rpartition(":")[2],
            recipe=inputs[RECIPE],
            lock=inputs[LOCK],
            layers=tuple(
                ClaimedLayer(
                    title=str(row["name"]),
                    digest=f"sha256:{_sha256(row)}",
                    **{key: str(row["annotations"][key]) for key in ("component", "key", "diff_id")},
                )
                for row in rows
                if "annotations" in row
            ),
            waivers=tuple(str(word) for word in run["metadata"]["imagebuilder_waivers"]),
            byproducts={str(row["name"]): _sha256(row) for row in rows if "annotations" not in row},
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"lacks a field of imagebuilder's statements: {error}") from None


def _gives(made: LayerRecord | None, layer: ImageLayer) -> bool:
    """Return True if a layer of the image is the one that was made, or has its tar, packed in another way."""
    if made is None or made.media_type == layer.record.media_type:
        return made == layer.record
    return (made.diff_id, made.unpacked) == (layer.record.diff_id, layer.record.unpacked)


def _base(lock: Lock) -> list[dict[str, Any]]:
    if lock.image is None:
        return []
    digest = lock.image.digest
    uri = image_purl(lock.image.name.rpartition("/")[2].partition(":")[0], digest)
    return [
        {"name": lock.image.name, "uri": uri, "digest": {"sha256": digest.removeprefix("sha256:")}},
    ]


def _layers(origin: Origin) -> list[dict[str, Any]]:
    return [
        {
            "name": made.title,
            "digest": {"sha256": made.record.digest.removeprefix("sha256:")},
            "mediaType": made.record.media_type,
            "annotations": {
                "component": made.component,
                "key": planned.key,
                "diff_id": made.record.diff_id,
                "size": made.record.size,
            },
        }
        for planned, made in zip(origin.plan.layers, origin.image.layers, strict=True)
    ]


def _file(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}


def _sha256(row: Mapping[str, Any]) -> str:
    return str(row["digest"]["sha256"])
