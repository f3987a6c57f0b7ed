"""The index that joins an image's platforms in a registry, read and held against what it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imagebuilder import lockfile
from imagebuilder.attest import signature
from imagebuilder.attest.provenance import LOCK
from imagebuilder.attest.published import tags_of
from imagebuilder.attest.source import Source
from imagebuilder.attest.verification import Check, Verification
from imagebuilder.errors import ImagebuilderError, InputError, RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, Options
from imagebuilder.yamlfile import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

# An index of more images than there are machines is somebody's trap: each is read in full.
_MOST = 16


@dataclass(frozen=True, kw_only=True)
class Whole:
    """An index in a registry.

    Attributes:
        reference: as it was asked for.
        digest: of the index.
        images: digest of each platform's image, sorted by platform.
        lock: checksum of the lock file, hex sha256, as its annotations say.
        signed: whether it has a signature: of the given key, without one any.

    """

    reference: str
    digest: str
    images: Mapping[str, str]
    lock: str
    signed: bool


def read(client: Client, key: EllipticCurvePublicKey | None = None) -> Whole | None:
    """Read an index; None where a single image stands there.

    Raises:
        RegistryError: there is nothing, it is damaged, or it names no platforms.

    """
    reference = client.reference
    found = reader.image_index(client, reference.digest or reference.tag)
    if found is None:
        return None
    raw, index = found
    where = f"{reference.name}@{raw.digest}"
    images: dict[str, str] = {}
    for entry in index.manifests:
        # What BuildKit attaches to an image stands beside it, for no platform at all.
        if entry.platform is None or entry.platform.os == "unknown":
            continue
        if images.setdefault(str(entry.platform), entry.digest) != entry.digest:
            raise RegistryError(f"names two images for {printable(str(entry.platform))}", where=where)
    if not images or len(images) > _MOST:
        raise RegistryError(f"names images for {len(images)} platforms", where=where)
    return Whole(
        reference=str(reference),
        digest=raw.digest,
        images={name: images[name] for name in sorted(images)},
        lock=index.annotations.get("org.imagebuilder.lock", ""),
        signed=signature.is_signed(client, raw.digest, key),
    )


def parts(whole: Whole, client: Client, options: Options, platform: str = "") -> Mapping[str, Client]:
    """Make a client for the image of each platform, or of the one that is named.

    Raises:
        InputError: it is not one of these.

    """
    if platform and platform not in whole.images:
        raise InputError(
            f"has no image for {printable(platform)}",
            where=whole.reference,
            hint=f"it has {printable(' and '.join(whole.images))}",
        )
    return {
        name: Client(replace(client.reference, tag="", digest=digest), options)
        for name, digest in whole.images.items()
        if platform in {"", name}
    }


def tags(whole: Whole, client: Client) -> tuple[str, ...]:
    """Name the tags that stand for the index."""
    return tags_of(client, whole.digest)


def checks(whole: Whole, found: Mapping[str, Verification], *, keyed: bool) -> tuple[Check, ...]:
    """Check the index itself, after the images that it names.

    Args:
        whole: the index.
        found: what came of each platform's image.
        keyed: whether its signature counts.

    """
    return (_signature(whole, keyed=keyed), _platforms(whole, found))


def _signature(whole: Whole, *, keyed: bool) -> Check:
    if keyed:
        detail = "made with this key" if whole.signed else "there is none of this key"
        return Check(name="signature", status="passed" if whole.signed else "failed", detail=detail)
    detail = (
        "there is one; --key checks whose" if whole.signed else "there is none, and no --key asks for one"
    )
    return Check(name="signature", status="not checked", detail=detail)


def _platforms(whole: Whole, found: Mapping[str, Verification]) -> Check:
    """See that the images are those of one recipe and lock, one for each of its platforms."""
    name = "platforms"
    sources: set[Source] = {item.source for item in found.values() if item.source is not None}
    if len(sources) != 1 or any(item.source is None for item in found.values()):
        detail = "its images are not made from one recipe and lock that are attached to each"
        return Check(name=name, status="failed", detail=detail)
    (source,) = sources
    try:
        file = lockfile.loads(source.lock, LOCK)
    except ImagebuilderError as error:
        return Check(name=name, status="failed", detail=error.problems[0].message)
    if set(file.platforms) != set(whole.images):
        detail = f"the lock is for {' and '.join(file.platforms)}"
        return Check(name=name, status="failed", detail=detail)
    if whole.lock != file.checksum:
        return Check(name=name, status="failed", detail="the lock is not the one that the index names")
    detail = f"{' and '.join(file.platforms)}, of one recipe and lock"
    return Check(name=name, status="passed", detail=detail)
