"""Reading an image that others made: the manifest of one platform, its config, and layers into the store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import urllib3

from imagebuilder.errors import FetchError, RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import Descriptor, Index
from imagebuilder.store import Store, explained
from imagebuilder.yamlfile import printable

log = logging.getLogger(__name__)

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
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an image: digest and size of its blob, digest of the tar inside, OCI's media type."""

    digest: str
    diff_id: str
    size: int
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """One platform's image in a registry.

    Attributes:
        digest: of its manifest.
        index: of the list of platforms that led to it; empty where there was none.
        layers: the lowest first.
        config: the `config` of its config: `Env`, `Labels`, `User` and the like.

    """

    digest: str
    index: str
    layers: tuple[Layer, ...]
    config: Mapping[str, Any]


def find(client: Client, name: str, architecture: str) -> Image:
    """Read what a tag or digest stands for on one architecture.

    Args:
        client: of the repository.
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
    return Image(
        digest=found.digest,
        index=index,
        layers=tuple(
            Layer(digest=layer.digest, diff_id=str(diff_id), size=layer.size, media_type=_type(layer, where))
            for layer, diff_id in zip(manifest.layers, diff_ids, strict=True)
        ),
        config=run if isinstance(run, dict) else {},
    )


def fetch(client: Client, layer: Layer, store: Store, advance: Callable[[int], None]) -> None:
    """Put a layer's blob into the store's downloads, under its digest; one that is there stays.

    Args:
        client: of a repository that has it.
        layer: which.
        store: where to.
        advance: told the bytes received; a negative count takes back what was received in vain.

    Raises:
        FetchError: it cannot be had, or is not what the digest says.
        StoreError: the disk is full or not writable.

    """
    name = layer.digest.removeprefix("sha256:")
    with store.exclusive(f"download {name}"):
        if store.has_download(name, layer.size):
            return
        place = store.download(name)
        part = place.with_name(f"{name}.part")
        with explained(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            part.touch()
        for attempt in range(1, _TRIES + 1):
            try:
                _receive(client, layer, part, advance)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                if attempt == _TRIES:
                    raise FetchError(
                        f"a layer of the base broke off again and again ({type(error).__name__})",
                        where=_where(client, layer.digest),
                        hint="check the network; what has come is kept, and the same command goes on",
                    ) from error
                client.pause(attempt, f"{type(error).__name__} of {layer.digest}")
                continue
            if part.stat().st_size >= layer.size:
                break
        _check(part, layer, _where(client, layer.digest))
        with explained(place):
            part.replace(place)


def _receive(client: Client, layer: Layer, part: Path, advance: Callable[[int], None]) -> None:
    """Receive what is missing of a blob; one byte more than announced ends it."""
    with explained(part), part.open("r+b") as file:
        have = min(part.stat().st_size, layer.size)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        if have == layer.size:
            return
        reply = client.request(
            "GET", f"blobs/{layer.digest}", wanted=(200, 206), headers=headers, stream=True
        )
        with reply:
            if reply.status_code != requests.codes.partial_content:
                advance(-have)
                have = 0
            file.seek(have)
            file.truncate()
            while data := reply.raw.read(_PIECE, decode_content=False):
                have += len(data)
                file.write(data)
                advance(len(data))
                if have > layer.size:
                    return


def _check(part: Path, layer: Layer, where: str) -> None:
    with part.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if digest != layer.digest or part.stat().st_size != layer.size:
        size = part.stat().st_size
        part.unlink(missing_ok=True)
        raise FetchError(
            f"the registry gave {size} bytes with the digest {digest} for a layer of {layer.size} bytes",
            where=where,
            hint="something between here and the registry changes what passes; try without the proxy",
        )


def _of_platform(client: Client, index: Index, architecture: str) -> str:
    offered = []
    for entry in index.manifests:
        if entry.platform is None or entry.platform.os == "unknown":
            continue  # what is attached to images stands in the same list
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
