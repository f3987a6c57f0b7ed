"""An image in a registry and what is attached to it, read and held to digests; nothing is judged here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import Reference, parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.publish.attest import envelope, signature
from imagebuilder.publish.attest.bundle import DocumentKind, kind_of
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.reader import Descriptor, ImageManifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

log = logging.getLogger(__name__)

# More artefacts than that are nobody's; each costs a few requests.
_MOST = 200
# All documents together are held in memory; a set of ours has two megabytes.
_MOST_BYTES = 128 << 20


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """One of our documents, as attached: its files by name; `signed` with the given key, or at all."""

    kind: DocumentKind
    digest: str
    files: Mapping[str, bytes]
    signed: bool

    @property
    def data(self) -> bytes:
        """The bytes of its first file; most kinds have no other."""
        return self.files[self.kind.files[0][0]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry.

    Attributes:
        reference: as it was asked for.
        digest, size: of its manifest, and bytes of manifest, config and layers.
        manifest, config: both documents.
        attachments: what imagebuilder attached, in the registry's order.
        others: types of what others attached.
        signed: whether the image has a signature: of the given key, without one any.
        signed_for: the repositories that the given key has signed it for; none without a key.
        statements: those in envelopes that the given key has signed; none without a key.

    """

    reference: Reference
    digest: str
    size: int
    manifest: ImageManifest
    config: Mapping[str, Any]
    attachments: tuple[Attachment, ...]
    others: tuple[str, ...]
    signed: bool
    signed_for: tuple[str, ...] = ()
    statements: tuple[bytes, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels in its config; empty where it has none."""
        run = self.config.get("config")
        found = run.get("Labels") if isinstance(run, dict) else None
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    @property
    def manifest_size(self) -> int:
        """Bytes of its manifest."""
        return self.size - self.manifest.config.size - sum(layer.size for layer in self.manifest.layers)

    @property
    def platform(self) -> str:
        """What it is for, as its config says: `linux/arm64`."""
        return f"{self.config.get('os', '')}/{self.config.get('architecture', '')}"

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of its layers' tars, as its config has them."""
        rootfs = self.config.get("rootfs")
        found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
        return tuple(str(item) for item in found) if isinstance(found, list) else ()

    @property
    def titles(self) -> tuple[str, ...]:
        """What made each layer, in its own words: one line a layer, empty where the history does not say."""
        history = self.config.get("history")
        rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
        made = [str(row.get("created_by", "")) for row in rows if not row.get("empty_layer")]
        count = len(self.manifest.layers)
        return tuple(made) if len(made) == count else ("",) * count


def open_image(text: str, options: Options) -> Client:
    """Make a client for an image's name that has a tag or a digest.

    Raises:
        InputError: it is not such a name.

    """
    reference = parse(text)
    if not (reference.tag or reference.digest):
        raise InputError(
            "names a repository, not an image", where=text, hint=f"add a tag: {printable(text)}:TAG"
        )
    return Client(reference, options)


def read(client: Client, key: EllipticCurvePublicKey | None = None, signed_for: str = "") -> Published:
    """Read an image, and all of ours that is attached to it.

    Args:
        client: of the image.
        key: whose signatures count; None for anybody's.
        signed_for: the repository that signatures have to name; empty for the one that is read.

    Raises:
        RegistryError: there is no such image, it is damaged, or the registry cannot be read.

    """
    reference = client.reference
    raw, manifest = reader.image_manifest(client, reference.digest or reference.tag)
    where = f"{reference.name}@{raw.digest}"
    config = reader.json_object(reader.blob(client, manifest.config), f"{where}: config")
    signed = partial(signature.is_signed, client, key=key, signed_for=signed_for)
    ours, others, held = [], [], 0
    for entry in reader.referrers(client, raw.digest)[:_MOST]:
        try:
            found = _attachment(client, entry, raw.digest, signed, _MOST_BYTES - held)
        except RegistryError as error:
            # Anybody who may push may attach rubbish; it must not keep what is good from being read.
            log.warning("%s: %s is attached and cannot be read: %s", where, entry.digest, error)
            found = "(cannot be read)"
        if isinstance(found, Attachment):
            ours.append(found)
            held += sum(map(len, found.files.values()))
        elif found:
            others.append(found)
    return Published(
        reference=reference,
        digest=raw.digest,
        size=len(raw.data) + manifest.config.size + sum(layer.size for layer in manifest.layers),
        manifest=manifest,
        config=config,
        attachments=tuple(ours),
        others=tuple(others),
        signed=signed(raw.digest),
        signed_for=signature.repositories(client, raw.digest, key),
        statements=envelope.statements(client, raw.digest, key) if key else (),
    )


def tags_of(client: Client, digest: str, most: int = 100) -> tuple[str, ...]:
    """Name the tags that stand for an image; of a repository with very many, only the last are looked at."""
    # Those of signatures and lists of artefacts are nobody's to pull.
    names = [tag for tag in reader.tags(client) if not tag.startswith("sha256-")]
    looked_at = {*names[-most:], client.reference.tag} - {""}
    return tuple(sorted(tag for tag in looked_at if client.head_manifest(tag) == digest))


def _attachment(
    client: Client, entry: Descriptor, subject: str, signed: Callable[[str], bool], room: int
) -> Attachment | str:
    """Read one artefact: ours with its files, for others' its type, "" for what belongs to another image."""
    _, manifest = reader.image_manifest(client, entry.digest)
    if manifest.subject is None or manifest.subject.digest != subject:
        return ""
    # Before image-spec 1.1 the config's type was the artefact's.
    artifact_type = manifest.artifact_type or manifest.config.media_type
    kind = kind_of(artifact_type, manifest.annotations)
    if kind is None:
        return artifact_type
    if sum(layer.size for layer in manifest.layers) > room:
        raise RegistryError("is more than is read of one image's documents", where=entry.digest)
    files = {}
    for layer in manifest.layers:
        name = layer.annotations.get(label_names.TITLE, "")
        if name in dict(kind.files):
            files[name] = reader.blob(client, layer)
    if files.keys() != dict(kind.files).keys():
        raise RegistryError(f"lacks a file of its kind ({kind.name})", where=entry.digest)
    return Attachment(
        kind=kind,
        digest=entry.digest,
        files=files,
        signed=signed(entry.digest),
    )
