"""Describe an image of a registry or of the store, to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.image import oci
from imagebuilder.publish import proof
from imagebuilder.publish.attest import age as ages
from imagebuilder.publish.attest import provenance, published, reports, whole
from imagebuilder.publish.attest.age import Age
from imagebuilder.publish.attest.bundle import PROVENANCE
from imagebuilder.publish.attest.published import Published
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.publish.attest.whole import Whole
from imagebuilder.publish.proof import Proof
from imagebuilder.registry import options_for, reader
from imagebuilder.registry.client import Client
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import built_image, labels, named, require_platform

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True, kw_only=True)
class InspectedLayer:
    """A layer: its title, the pin that it belongs to ("" if unknown), its digest and size."""

    title: str
    component: str
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class AttachedDocument:
    """A document attached to the image; `signed` means that there is a signature, of any key."""

    kind: str
    digest: str
    signed: bool


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """An image.

    Attributes:
        reference: the name that it was requested by.
        platform: for example `linux/arm64`.
        place: `registry` or `store`.
        digest: of the manifest.
        size: bytes of manifest, config and compressed layers.
        name, version, base: from its labels.
        lock: the lock's checksum, hex sha256.
        tags: that point to it in the registry; in the store, its own.
        pins: component and version.
        loaded: the version of each pin that the smoke test's nodes loaded; empty without a test.
        layers: the lowest first.
        verdict: of the smoke test: `passed`, `failed` or `none`.
        report: the verdict in one line.
        reports: all that are attached; empty in the store.
        policy: what its recipe demands of a report, as the label has it; "" if any passing report will do.
        signature: `present` (`verify --key` checks whose), `none`, or "" in the store.
        documents: attached by imagebuilder; empty in the store.
        others: artifact types of what other tools attached.
        waivers: gates that were waived when it was pushed.
        on_top: of an image that somebody built on top of one of imagebuilder, the steps that did.
        age: None if unknown. The image has no date, so that the same lock gives the same digest anywhere.

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
    loaded: Mapping[str, str]
    layers: tuple[InspectedLayer, ...]
    verdict: str
    report: str
    signature: str
    reports: tuple[AttachedReport, ...] = ()
    policy: str = ""
    documents: tuple[AttachedDocument, ...] = ()
    others: tuple[str, ...] = ()
    waivers: tuple[str, ...] = ()
    on_top: tuple[str, ...] = ()
    age: Age | None = None


@dataclass(frozen=True, kw_only=True)
class IndexInspection:
    """An index, the images that it joins, and the tags that point to it."""

    index: Whole
    tags: tuple[str, ...]
    images: tuple[Inspection, ...]


def inspect(
    target: str,
    store: Store,
    site: Callable[[], Site],
    *,
    provers: Mapping[str, EllipticCurvePublicKey] | None = None,
    platform: str = "",
    plain_http: bool = False,
) -> Inspection | IndexInspection:
    """Inspect the image that a name refers to: in the store or in a registry, for one or several platforms.

    Args:
        target: an image's name in a registry; a recipe that was built, or its image's name.
        store: the store to search.
        site: reads the site's settings; called only for an image in a registry.
        provers: keys that may have signed reports, by name.
        platform: inspect only this platform's image; "" for all.
        plain_http: use plain HTTP with a registry that does not speak TLS.

    Raises:
        InputError: there is no such image in the store, or none for that platform.
        LockError: the recipe changed since its image was built, or it was never built.
        RegistryError: the registry does not have it or cannot be read, or it is damaged.

    """
    if not named(target).in_registry:
        image = built_image(target, store, platform)
        if image is None:
            raise InputError(
                f"`{target}` is not an image in the store",
                where="imagebuilder inspect",
                hint="name an image in a registry as registry.example/team/name:TAG",
            )
        return from_store(target, image, store)
    options = options_for(site(), parse(target).host, plain_http=plain_http)
    client = published.open_image(target, options)
    index = whole.read(client)
    if index is not None and not platform:
        return IndexInspection(
            index=index,
            tags=whole.tags(index, client),
            images=tuple(
                from_registry(part, store, provers) for part in whole.parts(index, client, options).values()
            ),
        )
    if index is not None:
        client = whole.parts(index, client, options, platform)[platform]
    found = from_registry(client, store, provers)
    require_platform(platform, [found.platform], target)
    return found


def from_store(target: str, image: ImageRecord, store: Store) -> Inspection:
    """Inspect an image in the store.

    Raises:
        StoreError: its config cannot be read.

    """
    found = labels(image, store)
    loaded: Mapping[str, str] = {}
    try:
        report = proof.in_store(image, store)
        word, line = _verdict(report)
        loaded = report.report.loaded if report.is_about_image else {}
    except FileNotFoundError:
        word, line = "none", "not tested"
    except OSError as error:
        word, line = "none", f"cannot be read: {error.strerror}"
    except ValueError as error:
        word, line = "none", str(error)
    return Inspection(
        reference=target,
        platform=image.platform,
        place="store",
        digest=image.manifest,
        size=image.size,
        name=image.name,
        version=found.get(label_names.VERSION, ""),
        base=_base(found),
        lock=image.lock,
        tags=(image.tag,),
        pins=label_names.pins(found),
        loaded=loaded,
        layers=tuple(
            InspectedLayer(
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
        policy=found.get(label_names.PROOF, ""),
        age=ages.of_store(image, store),
    )


def from_registry(
    client: Client, store: Store, provers: Mapping[str, EllipticCurvePublicKey] | None = None
) -> Inspection:
    """Inspect an image in a registry; the store may know when it was built.

    Raises:
        RegistryError: the registry does not have it or cannot be read, or it is damaged.

    """
    image = published.read(client, provers=provers)
    found = image.labels
    attached = reports.attached(image)
    # The best of them: one that counts, else one that passed, else the last.
    best = sorted(attached, key=lambda one: (not one.refusals, one.verdict == "passed"))[-1:]
    word, line = (best[0].verdict, best[0].summary) if best else ("none", "none is attached")
    claim = _claim(image)
    return Inspection(
        reference=str(client.reference),
        platform=image.platform,
        place="registry",
        digest=image.digest,
        size=image.size,
        name=found.get(label_names.TITLE, ""),
        version=found.get(label_names.VERSION, ""),
        base=_base(found),
        lock=found.get(label_names.LOCK, ""),
        tags=published.tags_of(client, image.digest),
        pins=label_names.pins(found),
        loaded=best[0].loaded if best else {},
        layers=_layers(image, claim),
        verdict=word,
        report=line,
        signature="present" if image.signed else "none",
        reports=attached,
        policy=found.get(label_names.PROOF, ""),
        documents=tuple(
            AttachedDocument(kind=item.kind.name, digest=item.digest, signed=item.signed)
            for item in image.attachments
        ),
        others=image.others,
        waivers=claim.waivers if claim else (),
        on_top=image.on_top,
        age=ages.of_registry(client, image, store),
    )


def _verdict(report: Proof) -> tuple[str, str]:
    if not report.is_about_image:
        return "none", "is about another image"
    return ("passed" if report.proves_image else "failed"), report.summary


def _claim(image: Published) -> provenance.Claim | None:
    """Return the last provenance of this image, which says which pin each layer belongs to."""
    for attachment in reversed(image.attachments):
        if attachment.kind == PROVENANCE:
            try:
                claim = provenance.read(reader.json_object(attachment.data, "provenance"))
            except (ValueError, RegistryError):
                continue
            if claim.subject == image.digest:
                return claim
    return None


def _layers(image: Published, claim: provenance.Claim | None) -> tuple[InspectedLayer, ...]:
    components = {layer.digest: layer.component for layer in claim.layers} if claim else {}
    return tuple(
        InspectedLayer(
            title=title.removeprefix(oci.CREATED_BY),
            component=components.get(layer.digest, ""),
            digest=layer.digest,
            size=layer.size,
        )
        for layer, title in zip(image.manifest.layers, image.titles, strict=True)
    )


def _base(labels: Mapping[str, str]) -> str:
    """Return the base: a suite, or an image in a registry with its digest."""
    name = labels.get(label_names.BASE_NAME, "")
    digest = labels.get(label_names.BASE_DIGEST, "")
    return f"{name}@{digest}" if digest else name
