"""Read an image in a registry and what is attached to it. Checks digests and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import Reference, parse_image
from imagebuilder.errors import RegistryError
from imagebuilder.image.oci import CREATED_BY
from imagebuilder.publish.attest import envelope, signature
from imagebuilder.publish.attest.bundle import REPORT, DocumentKind, kind_of
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.reader import Descriptor, ImageManifest
from imagebuilder.smoke.reuse import ImageContent

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

log = logging.getLogger(__name__)

# No honest image has more artefacts, and each costs a few requests.
_MOST = 200
# All documents are held in memory; imagebuilder's take two megabytes together.
_MOST_BYTES = 128 << 20


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """An attached document of imagebuilder.

    Attributes:
        kind: what it is.
        digest: of its manifest.
        files: by name.
        signed: whether it has a signature with the given key, or without a key, any signature.
        signed_by: for a report, those of the given provers that have signed it.

    """

    kind: DocumentKind
    digest: str
    files: Mapping[str, bytes]
    signed: bool
    signed_by: tuple[str, ...] = ()

    @property
    def data(self) -> bytes:
        """The bytes of its first file; most kinds have only one."""
        return self.files[self.kind.files[0][0]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry.

    Attributes:
        reference: the name that it was requested by.
        digest, size: of its manifest, and bytes of manifest, config and layers.
        manifest, config: both documents.
        attachments: documents of imagebuilder, in the registry's order.
        others: artifact types of what other tools attached.
        signed: whether the image has a signature with the given key, or without a key, any signature.
        signed_for: repositories that the given key has signed it for; empty without a key.
        statements: statements in envelopes that the given key has signed; empty without a key.

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
        """The labels in its config; empty if it has none."""
        run = self.config.get("config")
        found = run.get("Labels") if isinstance(run, dict) else None
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    @property
    def content(self) -> ImageContent:
        """What it is made of."""
        layers = tuple(layer.digest for layer in self.manifest.layers)
        return ImageContent(
            digest=self.digest, config_digest=self.manifest.config.digest, layers=layers, config=self.config
        )

    @property
    def manifest_size(self) -> int:
        """Bytes of its manifest."""
        return self.size - self.manifest.config.size - sum(layer.size for layer in self.manifest.layers)

    @property
    def platform(self) -> str:
        """Its platform according to its config, such as `linux/arm64`."""
        return f"{self.config.get('os', '')}/{self.config.get('architecture', '')}"

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of its layers' tars (diffIDs), according to its config."""
        rootfs = self.config.get("rootfs")
        found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
        return tuple(str(item) for item in found) if isinstance(found, list) else ()

    @property
    def on_top(self) -> tuple[str, ...]:
        """The steps of another builder on top of an image of imagebuilder, the lowest first.

        They are what the history calls them, also steps without a layer, such as `ENV`. The history is a
        claim of whoever made the image.
        """
        made = [str(row.get("created_by", "")) for row in self._history]
        own = [number for number, step in enumerate(made, 1) if step.startswith(CREATED_BY)]
        return tuple(made[own[-1] :]) if own and label_names.LOCK in self.labels else ()

    @property
    def _history(self) -> tuple[dict[str, Any], ...]:
        history = self.config.get("history")
        return tuple(row for row in history if isinstance(row, dict)) if isinstance(history, list) else ()

    @property
    def titles(self) -> tuple[str, ...]:
        """The history entry of each layer; empty where the history has none."""
        made = [str(row.get("created_by", "")) for row in self._history if not row.get("empty_layer")]
        count = len(self.manifest.layers)
        return tuple(made) if len(made) == count else ("",) * count


def open_image(text: str, options: Options) -> Client:
    """Return a client for an image's name, which needs a tag or a digest.

    Raises:
        InputError: it is not such a name.

    """
    return Client(parse_image(text), options)


def read(
    client: Client,
    key: EllipticCurvePublicKey | None = None,
    signed_for: str = "",
    provers: Mapping[str, EllipticCurvePublicKey] | None = None,
) -> Published:
    """Read an image, and the documents of imagebuilder that are attached to it.

    Args:
        client: for the image.
        key: only its signatures count; None for any key.
        signed_for: the repository that signatures must name; empty for the image's own.
        provers: keys that may have signed reports, by name.

    Raises:
        RegistryError: the registry does not have the image or cannot be read, or the image is damaged.

    """
    reference = client.reference
    raw, manifest = reader.image_manifest(client, reference.digest or reference.tag)
    where = f"{reference.name}@{raw.digest}"
    config = reader.json_object(reader.blob(client, manifest.config), f"{where}: config")
    signed = partial(signature.is_signed, client, key=key, signed_for=signed_for)

    def signers(document: str) -> tuple[str, ...]:
        return tuple(
            name
            for name, prover in (provers or {}).items()
            if signature.is_signed(client, document, prover, signed_for)
        )

    ours, others, held = [], [], 0
    for entry in reader.referrers(client, raw.digest)[:_MOST]:
        try:
            found = _attachment(client, entry, raw.digest, _MOST_BYTES - held)
            if isinstance(found, Attachment):
                whose = signers(found.digest) if found.kind == REPORT else ()
                found = replace(found, signed=signed(found.digest), signed_by=whose)
        except RegistryError as error:
            # Everybody who may push may attach garbage, which must not prevent reading the rest.
            log.warning("%s: the attached %s cannot be read: %s", where, entry.digest, error)
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
    """Return the tags that point to an image; in a repository with very many, only the last are checked."""
    # Tags for signatures and lists of artefacts are not images.
    names = [tag for tag in reader.tags(client) if not tag.startswith("sha256-")]
    looked_at = {*names[-most:], client.reference.tag} - {""}
    return tuple(sorted(tag for tag in looked_at if client.head_manifest(tag) == digest))


def _attachment(client: Client, entry: Descriptor, subject: str, room: int) -> Attachment | str:
    """Read an artefact: one of imagebuilder with its files, of others the type, "" if of another image.

    Its signatures are not looked at.
    """
    _, manifest = reader.image_manifest(client, entry.digest)
    if manifest.subject is None or manifest.subject.digest != subject:
        return ""
    # Before image-spec 1.1, the media type of the config was the artifact type.
    artifact_type = manifest.artifact_type or manifest.config.media_type
    kind = kind_of(artifact_type, manifest.annotations)
    if kind is None:
        return artifact_type
    if sum(layer.size for layer in manifest.layers) > room:
        raise RegistryError("the documents of the image are too large", where=entry.digest)
    files = {}
    for layer in manifest.layers:
        name = layer.annotations.get(label_names.TITLE, "")
        if name in dict(kind.files):
            files[name] = reader.blob(client, layer)
    if files.keys() != dict(kind.files).keys():
        raise RegistryError(f"lacks a file that a document of the kind {kind.name} has", where=entry.digest)
    return Attachment(kind=kind, digest=entry.digest, files=files, signed=False)
