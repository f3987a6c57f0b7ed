"""What an image is, in one value to show: from a registry, or from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagebuilder.attest import age as ages
from imagebuilder.attest import provenance, published, verdict
from imagebuilder.attest.age import Age
from imagebuilder.attest.bundle import PROVENANCE, REPORT
from imagebuilder.attest.published import Published
from imagebuilder.errors import RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import labels

_PIN = "org.imagebuilder.pin."
_LAYER = "imagebuilder: "


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: what people call it, the pin that it belongs to ("" if nobody says), blob and bytes."""

    title: str
    component: str
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document that goes with the image; `signed` says that there is a signature, not whose."""

    kind: str
    digest: str
    signed: bool


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """An image.

    Attributes:
        reference: as it was asked for.
        platform: that it is for, as in `linux/arm64`.
        place: `registry` or `store`.
        digest: of the manifest.
        size: bytes of manifest, config and compressed layers.
        name, version, base: from its labels.
        lock: the lock's checksum, hex sha256.
        tags: that stand for it in the registry; in the store its own.
        pins: component and version.
        layers: the lowest first.
        verdict: of the smoke test: `passed`, `failed` or `none`.
        report: the verdict in a line.
        signature: `present` (whose, `verify --key` says), `none`, or "" in the store.
        documents: that imagebuilder attached; empty in the store.
        others: types of what others attached.
        waivers: gates that were waived when it was pushed.
        age: None where nobody says: the image itself carries no date, so that the same lock gives the same
            digest anywhere.

    """

    reference: str
    platform: str
    place: str
    digest: str
    size: int
    name: str
    version: str
    base: str
    lock: str
    tags: tuple[str, ...]
    pins: Mapping[str, str]
    layers: tuple[Layer, ...]
    verdict: str
    report: str
    signature: str
    documents: tuple[Document, ...] = ()
    others: tuple[str, ...] = ()
    waivers: tuple[str, ...] = ()
    age: Age | None = None


def from_store(target: str, image: ImageRecord, store: Store) -> Inspection:
    """Look at an image of the store.

    Raises:
        StoreError: its config cannot be read.

    """
    found = labels(image, store)
    try:
        word, line = _verdict(store.report(image.manifest).read_bytes(), image.manifest)
    except FileNotFoundError:
        word, line = "none", "not tested"
    except OSError as error:
        word, line = "none", f"cannot be read: {error.strerror}"
    return Inspection(
        reference=target,
        platform=image.platform,
        place="store",
        digest=image.manifest,
        size=image.size,
        name=image.name,
        version=found.get("org.opencontainers.image.version", ""),
        base=_base(found),
        lock=image.lock,
        tags=(image.tag,),
        pins=_pins(found),
        layers=tuple(
            Layer(
                title=layer.title,
                component=layer.component,
                digest=layer.record.digest,
                size=layer.record.size,
            )
            for layer in image.layers
        ),
        verdict=word,
        report=line,
        signature="",
        age=ages.of_store(image, store),
    )


def from_registry(client: Client, store: Store) -> Inspection:
    """Look at an image in a registry; the store may know when it was built.

    Raises:
        RegistryError: there is none, it is damaged, or the registry cannot be read.

    """
    image = published.read(client)
    found = image.labels
    word, line = "none", "none is attached"
    for attachment in image.attachments:
        if attachment.kind == REPORT and word != "passed":
            word, line = _verdict(attachment.data, image.digest)
    claim = _claim(image)
    return Inspection(
        reference=str(client.reference),
        platform=image.platform,
        place="registry",
        digest=image.digest,
        size=image.size,
        name=found.get("org.opencontainers.image.title", ""),
        version=found.get("org.opencontainers.image.version", ""),
        base=_base(found),
        lock=found.get("org.imagebuilder.lock", ""),
        tags=published.tags_of(client, image.digest),
        pins=_pins(found),
        layers=_layers(image, claim),
        verdict=word,
        report=line,
        signature="present" if image.signed else "none",
        documents=tuple(
            Document(kind=item.kind.name, digest=item.digest, signed=item.signed)
            for item in image.attachments
        ),
        others=image.others,
        waivers=claim.waivers if claim else (),
        age=ages.of_registry(client, image, store),
    )


def _verdict(data: bytes, digest: str) -> tuple[str, str]:
    try:
        report = verdict.read(data)
    except ValueError as error:
        return "none", str(error)
    if report.digest != digest:
        return "none", "is about another image"
    return ("passed" if report.is_proof else "failed"), str(report)


def _claim(image: Published) -> provenance.Claim | None:
    """Take the last statement that is about this image: it says which pin each layer belongs to."""
    for attachment in reversed(image.attachments):
        if attachment.kind == PROVENANCE:
            try:
                claim = provenance.read(reader.json_object(attachment.data, "provenance"))
            except (ValueError, RegistryError):
                continue
            if claim.subject == image.digest:
                return claim
    return None


def _layers(image: Published, claim: provenance.Claim | None) -> tuple[Layer, ...]:
    components = {layer.digest: layer.component for layer in claim.layers} if claim else {}
    return tuple(
        Layer(
            title=title.removeprefix(_LAYER),
            component=components.get(layer.digest, ""),
            digest=layer.digest,
            size=layer.size,
        )
        for layer, title in zip(image.manifest.layers, image.titles, strict=True)
    )


def _pins(found: Mapping[str, str]) -> Mapping[str, str]:
    return {key.removeprefix(_PIN): found[key] for key in sorted(found) if key.startswith(_PIN)}


def _base(labels: Mapping[str, str]) -> str:
    """Name the base: a suite, or an image of a registry with its digest."""
    name = labels.get("org.opencontainers.image.base.name", "")
    digest = labels.get("org.opencontainers.image.base.digest", "")
    return f"{name}@{digest}" if digest else name
