"""Read from a registry: manifests, small blobs, tags, and artefacts attached to an image.

Registries are not trusted: before use, every document is checked against its digest, its announced size and a
limit, and every field against its type. Formats: image-spec 1.1 (manifest.md, descriptor.md, image-index.md);
distribution-spec 1.1 for referrers and the tag that replaces the API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from imagebuilder.core import jsontext
from imagebuilder.core.documents import digest_of
from imagebuilder.core.reference import TAG
from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import RegistryError
from imagebuilder.registry import faults
from imagebuilder.registry.client import MANIFEST_LIMIT, Client, Manifest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_INDEXES = frozenset({OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"})
_IMAGES = frozenset({OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json"})

# Attached documents are JSON or text; a bill of materials of ten thousand packages has some megabytes.
BLOB_LIMIT = 32 * 1024 * 1024
# Limit of values in a manifest, an index or a page of a list.
_MOST_VALUES = 100_000
# Limits for lists of tags and artefacts: a hostile registry could list without end.
_MOST_PAGES = 100
_MOST_BYTES = 4 * MANIFEST_LIMIT
_NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')
_LONGEST_LINK = 8192
_HINT = "it was made by another tool, or damaged"
_Model = TypeVar("_Model", bound=BaseModel)


class _Document(BaseModel):
    """Ignores unknown keys, because newer registries and tools add some."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, populate_by_name=True)


class Platform(_Document):
    """The platform of an image in an index, by Go's names (image-spec 1.1, image-index.md)."""

    os: Annotated[str, Field(max_length=64)]
    architecture: Annotated[str, Field(max_length=64)]

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


class Descriptor(_Document):
    """A reference to a blob or manifest in an OCI document; `size` is in bytes."""

    media_type: Annotated[str, Field(alias="mediaType", max_length=255)]
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    artifact_type: Annotated[str, Field(alias="artifactType", max_length=255)] = ""
    annotations: dict[str, str] = {}
    platform: Platform | None = None


class ImageManifest(_Document):
    """The manifest of an image or of an artefact; an attached artefact has a `subject`."""

    schema_version: Annotated[Literal[2], Field(alias="schemaVersion")]
    media_type: Annotated[str, Field(alias="mediaType")] = OCI_MANIFEST
    artifact_type: Annotated[str, Field(alias="artifactType", max_length=255)] = ""
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], FailFast()] = ()
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class Index(_Document):
    """A list of manifests."""

    schema_version: Annotated[Literal[2], Field(alias="schemaVersion")]
    manifests: Annotated[tuple[Descriptor, ...], FailFast()] = ()
    annotations: dict[str, str] = {}


class _Tags(_Document):
    tags: tuple[str, ...] | None = None


def image_manifest(client: Client, name: str) -> tuple[Manifest, ImageManifest]:
    """Read the manifest of one image, by tag or digest.

    Raises:
        RegistryError: there is none, it is damaged, or it is a list of images for several platforms.

    """
    raw = client.get_manifest(name)
    where = f"{client.reference.name}@{raw.digest}"
    if raw.media_type not in _IMAGES:
        raise RegistryError(
            f"is not the manifest of one image but of the type {printable(raw.media_type)}",
            where=where,
            hint="name one platform's image by its digest, or with --platform",
        )
    return raw, parse(ImageManifest, raw.data, where)


def image_index(client: Client, name: str) -> tuple[Manifest, Index] | None:
    """Read an index of images for several platforms, by tag or digest; None if it is a single image.

    Raises:
        RegistryError: there is nothing, or it is damaged.

    """
    raw = client.get_manifest(name)
    if raw.media_type not in _INDEXES:
        return None
    return raw, parse(Index, raw.data, f"{client.reference.name}@{raw.digest}")


def find_manifest(client: Client, name: str, budget: Budget | None = None) -> Manifest | None:
    """Read any manifest, by tag or digest; None if there is none."""
    budget = budget or client.budget()
    if not client.head_manifest(name, budget):
        return None
    return client.get_manifest(name, budget)


def blob(client: Client, descriptor: Descriptor) -> bytes:
    """Read a small blob into memory, and check it against its descriptor.

    Raises:
        RegistryError: it is larger than 32 MiB, cannot be downloaded, or does not match the descriptor.

    """
    where = f"{client.reference.name}@{descriptor.digest}"
    if descriptor.size > BLOB_LIMIT:
        raise RegistryError(f"has {descriptor.size} bytes, which is too large to read", where=where)
    budget = client.budget()
    while True:
        _, data = client.read(f"blobs/{descriptor.digest}", descriptor.size, budget=budget)
        if len(data) == descriptor.size and digest_of(data) == descriptor.digest:
            return data
        if len(data) >= descriptor.size:
            break
        client.wait(budget, faults.Interrupted("a small blob was cut short", where=where, hint="try again"))
    raise RegistryError(
        "the registry gave other bytes than the digest says",
        where=where,
        hint="something between here and the registry changes the data; try without the proxy",
    )


def tags(client: Client) -> tuple[str, ...]:
    """Return the valid tags of the repository, in the registry's order."""
    listed: list[str] = []
    for page in _pages(client, "tags/list?n=1000", (200, 404)):
        listed += parse(_Tags, page, client.reference.name).tags or ()
    return tuple(tag for tag in dict.fromkeys(listed) if TAG.fullmatch(tag))


def referrers(client: Client, digest: str) -> tuple[Descriptor, ...]:
    """Return the artefacts attached to a manifest: from the registry's API, or from the tag that replaces it.

    Registries do not always list an artefact's type and annotations: its manifest has them.
    """
    artefacts: list[Descriptor] = []
    asked = _pages(client, f"referrers/{digest}", (200, 400, 404, 405))
    if asked:
        for page in asked:
            artefacts += parse(Index, page, f"{client.reference.name}: referrers").manifests
    else:
        index = find_manifest(client, fallback_tag(digest))
        if index is not None and index.media_type == OCI_INDEX:
            artefacts += parse(Index, index.data, f"{client.reference.name}@{index.digest}").manifests
    return tuple({item.digest: item for item in artefacts}.values())


def fallback_tag(digest: str) -> str:
    """Return the tag that lists the artefacts in a registry without the API: `sha256-<hex>`."""
    return digest.replace(":", "-")


def parse(model: type[_Model], data: bytes, where: str) -> _Model:
    """Read a JSON document as a model.

    Raises:
        RegistryError: it does not fit the model; names the field.

    """
    try:
        jsontext.loads(data, limit=MANIFEST_LIMIT, most=_MOST_VALUES, unique=True)
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise RegistryError(
            f"is not a document of its kind: {printable(place)}: {printable(first['msg'])}".replace(
                ": :", ":"
            ),
            where=where,
            hint=_HINT,
        ) from None
    except ValueError as error:
        raise RegistryError(
            f"is not a document of its kind: it {printable(str(error))}", where=where, hint=_HINT
        ) from None


def json_object(data: bytes, where: str) -> Mapping[str, Any]:
    """Read a JSON object that somebody published.

    Raises:
        RegistryError: it is not one.

    """
    try:
        value = jsontext.loads(data, limit=BLOB_LIMIT, unique=True)
    except ValueError as error:
        raise RegistryError(
            f"is not a JSON object: it {printable(str(error))}", where=where, hint=_HINT
        ) from None
    if not isinstance(value, dict):
        raise RegistryError("is not a JSON object", where=where, hint=_HINT)
    return value


def _pages(client: Client, place: str, wanted: tuple[int, ...]) -> list[bytes]:
    """Return the pages of a list; none if the registry has no such list."""
    pages: list[bytes] = []
    url = client.url(place)
    while url and len(pages) < _MOST_PAGES:
        reply, data = client.read(url, MANIFEST_LIMIT, wanted=wanted)
        if reply.status_code != requests.codes.ok:
            return pages
        if len(data) > MANIFEST_LIMIT:
            raise RegistryError("a list is larger than 4 MiB", where=client.reference.name)
        pages.append(data)
        if sum(map(len, pages)) > _MOST_BYTES:
            raise RegistryError(f"a list is larger than {_MOST_BYTES >> 20} MiB", where=client.reference.name)
        url = _next(reply, url)
    return pages


def _next(reply: requests.Response, url: str) -> str:
    """Return the URL of the next page; "" if it is on another host, which must not get the credentials."""
    link = _NEXT.search(reply.headers.get("Link", "")[:_LONGEST_LINK])
    try:
        following = urljoin(url, link[1]) if link else ""
        return following if following and urlsplit(following)[:2] == urlsplit(url)[:2] else ""
    except ValueError:
        return ""
