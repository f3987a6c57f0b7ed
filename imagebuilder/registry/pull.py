"""Pull another tool's image: the manifest of one platform, its config, and its layers into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests
import urllib3

from imagebuilder.core import times
from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import FetchError, RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, RequestOptions
from imagebuilder.registry.faults import Interrupted
from imagebuilder.registry.reader import Descriptor, Index
from imagebuilder.store import Store
from imagebuilder.store.partial import BrokenOffError, PartialFile, StoppedError, WrongBytesError

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_LISTS = frozenset({reader.OCI_INDEX, DOCKER_LIST})
# The same bytes under Docker's names and OCI's (image-spec 1.1, layer.md; Docker's "Image Manifest V2.2").
_LAYER_TYPES = {
    "application/vnd.oci.image.layer.v1.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an image: digest and size of its blob, digest of the tar inside, OCI's media type."""

    digest: str
    diff_id: str
    size: int
    media_type: str


@dataclass(frozen=True, kw_only=True)
class PulledImage:
    """One platform's image in a registry.

    Attributes:
        digest: of its manifest.
        index: digest of the index that lists it; "" if there is none.
        layers: the lowest first.
        created: the time in its config, in UTC; "" if it states none.
        config: the `config` of its config: `Env`, `Labels`, `User` and the like.

    """

    digest: str
    index: str
    layers: tuple[Layer, ...]
    created: str
    config: Mapping[str, Any]


def find(client: Client, name: str, architecture: str) -> PulledImage:
    """Read the image that a tag or digest refers to, for one architecture.

    Args:
        client: the repository's client.
        name: a tag, or a digest.
        architecture: as OCI calls it (`amd64`); the system is Linux.

    Raises:
        RegistryError: there is no such image, it is damaged, or it is for other platforms.

    """
    raw = client.get_manifest(name)
    index = ""
    if raw.media_type in _LISTS:
        index = raw.digest
        name = _of_platform(client, reader.parse(Index, raw.data, _where(client, index)), architecture)
    found, manifest = reader.image_manifest(client, name)
    where = _where(client, found.digest)
    config = reader.json_object(reader.blob(client, manifest.config), f"{where}: config")
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != f"linux/{architecture}":
        raise RegistryError(
            f"is an image for {printable(platform)}, not for linux/{architecture}",
            where=where,
            hint="choose a tag of the other platform, or one for several platforms",
        )
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or len(diff_ids) != len(manifest.layers) or not diff_ids:
        raise RegistryError("its config does not say what its layers are", where=where)
    run = config.get("config")
    return PulledImage(
        digest=found.digest,
        index=index,
        layers=tuple(
            Layer(digest=layer.digest, diff_id=str(diff_id), size=layer.size, media_type=_type(layer, where))
            for layer, diff_id in zip(manifest.layers, diff_ids, strict=True)
        ),
        created=times.normal(times.seconds(config.get("created"))),
        config=run if isinstance(run, dict) else {},
    )


def fetch(client: Client, layer: Layer, store: Store, advance: Callable[[int], None]) -> None:
    """Download a layer's blob into the store's downloads, unless it is there already.

    Args:
        client: the client of a repository that has the blob.
        layer: the layer.
        store: gets the blob.
        advance: called with the number of bytes received; a negative number takes back discarded bytes.

    Raises:
        FetchError: the blob cannot be downloaded, or does not match its digest.
        StoreError: the disk is full or not writable.

    """
    name = layer.digest.removeprefix("sha256:")
    with store.exclusive(f"download {name}"):
        if not store.has_download(name, layer.size):
            receive(client, layer.digest, layer.size, store.download(name), advance)


def receive(client: Client, digest: str, size: int, place: Path, advance: Callable[[int], None]) -> None:
    """Download a blob to a path in the store, and continue if the connection breaks off.

    Args:
        client: the client of a repository that has the blob.
        digest: of the blob; other bytes are refused.
        size: of the blob, in bytes.
        place: where it goes once it is complete. An earlier part of it, `PLACE.part`, is used.
        advance: see `fetch`.

    Raises:
        FetchError: the blob cannot be downloaded, or does not match its digest.
        RegistryError: the registry refused, or cannot be reached.
        StoreError: the disk is full or not writable.

    """
    sha256 = digest.removeprefix("sha256:")
    file = PartialFile(place, size=size, sha256=sha256, advance=advance, stop=client.stopped)
    budget, where = client.budget(), _where(client, digest)
    while True:
        try:
            file.attempt(partial(_source, client, digest, budget), client.reference.host)
        except WrongBytesError as error:
            hint = "something between here and the registry changes what passes; try without the proxy"
            raise FetchError(f"a blob has other bytes: {error}", where=where, hint=hint) from error
        except StoppedError as error:
            raise RegistryError("stopped", where=where) from error
        except BrokenOffError as error:
            failure = Interrupted(
                f"a blob broke off: {error}",
                where=where,
                hint="check the network; what has come is kept, and the same command goes on",
            )
        else:
            return
        if file.progressed():
            budget.progressed()
        try:
            client.wait(budget, failure)
        except Interrupted as error:
            raise FetchError.of(error.problems) from error


@contextmanager
def _source(client: Client, digest: str, budget: Budget, start: int) -> Iterator[tuple[int, Iterable[bytes]]]:
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    place = f"blobs/{digest}"
    options = RequestOptions(headers=headers, stream=True)
    with client.request("GET", place, wanted=(200, 206), options=options, budget=budget) as reply:
        try:
            granted = start if reply.status_code == requests.codes.partial_content else 0
            # read1 returns what has come: a slow registry is noticed, and can be stopped.
            yield granted, iter(lambda: reply.raw.read1(_PIECE, decode_content=False), b"")
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise BrokenOffError(type(error).__name__) from error


def _of_platform(client: Client, index: Index, architecture: str) -> str:
    offered = []
    for entry in index.manifests:
        if entry.platform is None or entry.platform.os == "unknown":
            continue  # documents attached to images are in the same list
        if (entry.platform.os, entry.platform.architecture) == ("linux", architecture):
            return entry.digest
        offered.append(f"{entry.platform.os}/{entry.platform.architecture}")
    raise RegistryError(
        f"there is no image for linux/{architecture}",
        where=str(client.reference),
        hint=f"it is there for {printable(', '.join(dict.fromkeys(offered))) or 'no platform at all'}",
    )


def _type(layer: Descriptor, where: str) -> str:
    if layer.media_type not in _LAYER_TYPES:
        raise RegistryError(
            f"has a layer of the type {printable(layer.media_type)}",
            where=where,
            hint="plain, gzip and zstd layers are known here; layers that may not be copied are not",
        )
    return _LAYER_TYPES[layer.media_type]


def _where(client: Client, digest: str) -> str:
    return f"{client.reference.name}@{digest}"
