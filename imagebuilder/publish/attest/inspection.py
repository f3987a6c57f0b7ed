"""What an image is, in one value to show: from a registry, or from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.image import oci
from imagebuilder.publish import proof
from imagebuilder.publish.attest import age as ages
from imagebuilder.publish.attest import provenance, published, whole
from imagebuilder.publish.attest.age import Age
from imagebuilder.publish.attest.bundle import PROVENANCE, REPORT
from imagebuilder.publish.attest.published import Published
from imagebuilder.publish.attest.whole import Whole
from imagebuilder.publish.proof import Proof
from imagebuilder.registry import options_for, reader
from imagebuilder.registry.client import Client
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import built_image, labels, named, require_platform


@dataclass(frozen=True, kw_only=True)
class InspectedLayer:
    """One layer: what people call it, the pin that it belongs to ("" if nobody says), blob and bytes."""

    title: str
    component: str
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class AttachedDocument:
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
    layers: tuple[InspectedLayer, ...]
    verdict: str
    report: str
    signature: str
    documents: tuple[AttachedDocument, ...] = ()
    others: tuple[str, ...] = ()
    waivers: tuple[str, ...] = ()
    age: Age | None = None


@dataclass(frozen=True, kw_only=True)
class IndexInspection:
    """An index and the images that it joins; `tags` stand for it."""

    index: Whole
    tags: tuple[str, ...]
    images: tuple[Inspection, ...]


def inspect(
    target: str, store: Store, site: Callable[[], Site], *, platform: str = "", plain_http: bool = False
) -> Inspection | IndexInspection:
    """Look at what a name stands for: an image of the store, or one or several in a registry.

    Args:
        target: an image's name in a registry; a recipe that was built, or its image's name.
        store: to look in.
        site: reads the site's settings; called only for an image in a registry.
        platform: look at this platform's image alone; "" for all.
        plain_http: speak plain HTTP with a registry that does not speak TLS.

    Raises:
        InputError: there is no such image in the store, or none for that platform.
        LockError: the recipe changed since its image was built, or it was never built.
        RegistryError: there is none in the registry, it is damaged, or the registry cannot be read.

    """
    if not named(target).in_registry:
        image = built_image(target, store, platform)
        if image is None:
            raise InputError(
                f"`{target}` is not an image in the store",
                where="imagebuilder inspect",
                hint="an image of a registry is named as in registry.example/team/name:TAG",
            )
        return from_store(target, image, store)
    options = options_for(site(), parse(target).host, plain_http=plain_http)
    client = published.open_image(target, options)
    index = whole.read(client)
    if index is not None and not platform:
        return IndexInspection(
            index=index,
            tags=whole.tags(index, client),
            images=tuple(from_registry(part, store) for part in whole.parts(index, client, options).values()),
        )
    if index is not None:
        client = whole.parts(index, client, options, platform)[platform]
    found = from_registry(client, store)
    require_platform(platform, [found.platform], target)
    return found


def from_store(target: str, image: ImageRecord, store: Store) -> Inspection:
    """Look at an image of the store.

    Raises:
        StoreError: its config cannot be read.

    """
    found = labels(image, store)
    try:
        word, line = _verdict(proof.in_store(image, store))
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
            try:
                word, line = _verdict(proof.judge(attachment.data, image.digest))
            except ValueError as error:
                word, line = "none", str(error)
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
        layers=_layers(image, claim),
        verdict=word,
        report=line,
        signature="present" if image.signed else "none",
        documents=tuple(
            AttachedDocument(kind=item.kind.name, digest=item.digest, signed=item.signed)
            for item in image.attachments
        ),
        others=image.others,
        waivers=claim.waivers if claim else (),
        age=ages.of_registry(client, image, store),
    )


def _verdict(report: Proof) -> tuple[str, str]:
    if not report.is_about_image:
        return "none", "is about another image"
    return ("passed" if report.proves_image else "failed"), report.summary


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
    """Name the base: a suite, or an image of a registry with its digest."""
    name = labels.get(label_names.BASE_NAME, "")
    digest = labels.get(label_names.BASE_DIGEST, "")
    return f"{name}@{digest}" if digest else name
