"""Read the index that joins an image's platforms in a registry, and check it against its images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import ImagebuilderError, InputError, RegistryError
from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import signature
from imagebuilder.publish.attest.provenance import LOCK
from imagebuilder.publish.attest.published import tags_of
from imagebuilder.publish.attest.verification import Verification, VerifyCheck, signature_check
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, Options
from imagebuilder.workflow.source import RecipeSource

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

# Each image is read completely, so an index with more images than platforms exist can only be an attack.
_MOST = 16


@dataclass(frozen=True, kw_only=True)
class Whole:
    """An index in a registry.

    Attributes:
        reference: the name that it was requested by.
        digest: of the index.
        images: digest of each platform's image, sorted by platform.
        lock: checksum of the lock file, hex sha256, as its annotations say.
        signed: whether it has a signature with the given key, or without a key, any signature.
        signed_for: the repositories that the given key has signed it for.

    """

    reference: str
    digest: str
    images: Mapping[str, str]
    lock: str
    signed: bool
    signed_for: tuple[str, ...] = ()

    @property
    def by_digest(self) -> str:
        """Its name with its digest."""
        return f"{parse(self.reference).name}@{self.digest}"


def read(client: Client, key: EllipticCurvePublicKey | None = None, signed_for: str = "") -> Whole | None:
    """Read an index; None for a single image. `key` and `signed_for` as in `published.read`.

    Raises:
        RegistryError: it does not exist, is damaged, or has no platforms.

    """
    reference = client.reference
    found = reader.image_index(client, reference.digest or reference.tag)
    if found is None:
        return None
    raw, index = found
    where = f"{reference.name}@{raw.digest}"
    images: dict[str, str] = {}
    for entry in index.manifests:
        # BuildKit's attachments are entries of the index without a platform.
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
        lock=index.annotations.get(label_names.LOCK, ""),
        signed=signature.is_signed(client, raw.digest, key, signed_for),
        signed_for=signature.repositories(client, raw.digest, key),
    )


def parts(whole: Whole, client: Client, options: Options, platform: str = "") -> Mapping[str, Client]:
    """Return a client for the image of each platform, or of the named one.

    Raises:
        InputError: the index does not have the named platform.

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
    """Return the tags that point to the index."""
    return tags_of(client, whole.digest)


def checks(whole: Whole, found: Mapping[str, Verification], *, keyed: bool) -> tuple[VerifyCheck, ...]:
    """Check the index itself, after the images that it names.

    Args:
        whole: the index.
        found: the results for each platform's image.
        keyed: whether its signature must be of a given key.

    """
    signed = signature_check(signed=whole.signed, signed_for=whole.signed_for, keyed=keyed)
    return (signed, _platforms(whole, found))


def _platforms(whole: Whole, found: Mapping[str, Verification]) -> VerifyCheck:
    """Check that the images are made from one recipe and lock, one for each of its platforms."""
    name = "platforms"
    sources: set[RecipeSource] = {item.source for item in found.values() if item.source is not None}
    if len(sources) != 1 or any(item.source is None for item in found.values()):
        detail = "its images do not all have the same recipe and lock attached"
        return VerifyCheck(name=name, status="failed", detail=detail)
    (source,) = sources
    try:
        file = lockfile.loads(source.lock, LOCK)
    except ImagebuilderError as error:
        return VerifyCheck(name=name, status="failed", detail=error.problems[0].message)
    if set(file.platforms) != set(whole.images):
        detail = f"the lock is for {' and '.join(file.platforms)}"
        return VerifyCheck(name=name, status="failed", detail=detail)
    if whole.lock != file.checksum:
        return VerifyCheck(name=name, status="failed", detail="the lock is not the one that the index names")
    detail = f"{' and '.join(file.platforms)}, of one recipe and lock"
    return VerifyCheck(name=name, status="passed", detail=detail)
