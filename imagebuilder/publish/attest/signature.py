"""Signatures as cosign writes and reads them: a signed document about a digest, under a separate tag.

https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md. The tag is `sha256-<hex>.sig`; each
layer of that tag's manifest is one signed document, with its signature as an annotation. Only keys are
supported, no certificates and no transparency log, so no other service is needed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from imagebuilder.core import documents
from imagebuilder.core.reference import DOCKER_HUB, parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.registry import artefacts, reader
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import OCI_MANIFEST, Descriptor, ImageManifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_KIND = "cosign container image signature"
# Each may be megabytes to read: more signatures of one image than this can only be an attack.
_MOST = 64
_LARGEST = 1 << 20
# cosign's name for Docker Hub.
_HUBS = frozenset({"index.docker.io", "registry-1.docker.io"})


def tag_of(digest: str) -> str:
    """Return the tag for the signatures of a manifest."""
    return f"{reader.fallback_tag(digest)}.sig"


def payload(repository: str, digest: str) -> bytes:
    """Return the document to sign: this digest, in this repository."""
    return documents.dumps(
        {
            "critical": {
                "identity": {"docker-reference": repository},
                "image": {"docker-manifest-digest": digest},
                "type": _KIND,
            },
            "optional": None,
        }
    )


def sign(client: Client, digest: str, key: EllipticCurvePrivateKey) -> bool:
    """Sign a manifest in its repository, and push the signature beside existing ones.

    Returns False if this key has already signed it for this repository.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if is_signed(client, digest, key.public_key()):
        return False
    data = payload(client.reference.name, digest)
    made = base64.b64encode(key.sign(data, ec.ECDSA(hashes.SHA256()))).decode()
    add(
        client,
        tag_of(digest),
        artefacts.ArtefactBlob(media_type=PAYLOAD_TYPE, data=data, annotations={ANNOTATION: made}),
    )
    return True


def add(client: Client, tag: str, part: artefacts.ArtefactBlob) -> None:
    """Add a document under a tag as cosign does: as another layer of an image manifest.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    known = layers(client, tag)
    rows = [*(layer.model_dump(by_alias=True, exclude_defaults=True) for layer in known), part.descriptor]
    config = artefacts.ArtefactBlob(media_type=_CONFIG_TYPE, data=_config(rows))
    for blob in (config.data, part.data):
        artefacts.put_blob(client, blob)
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config.descriptor, "layers": rows}
    artefacts.put_manifest(client, tag, documents.dumps(manifest))


def layers(client: Client, tag: str) -> tuple[Descriptor, ...]:
    """Read the manifest under a tag of cosign; empty if there is no such tag.

    Raises:
        RegistryError: the tag holds something else.

    """
    found = reader.find_manifest(client, tag)
    if found is None:
        return ()
    return reader.parse(ImageManifest, found.data, f"{client.reference.name}:{tag}").layers


def is_signed(client: Client, digest: str, key: EllipticCurvePublicKey | None, signed_for: str = "") -> bool:
    """Return True if a manifest is signed with this key; without a key, with any key.

    Args:
        client: for the repository.
        digest: of the manifest.
        key: the key that must have signed it.
        signed_for: the repository that the signature must name; empty for the client's own. Otherwise anyone
            who may push could replace this image with one of another repository.

    Raises:
        RegistryError: the tag for signatures holds something else.

    """
    if key is None:
        return any(ANNOTATION in layer.annotations for layer in layers(client, tag_of(digest)))
    return _repository(signed_for or client.reference.name) in _repositories(client, digest, key)


def repositories(client: Client, digest: str, key: EllipticCurvePublicKey | None) -> tuple[str, ...]:
    """Return the repositories that this key has signed a manifest for; empty without a key.

    Raises:
        RegistryError: the tag for signatures holds something else.

    """
    return tuple(dict.fromkeys(_repositories(client, digest, key))) if key else ()


def _repositories(client: Client, digest: str, key: EllipticCurvePublicKey) -> Iterator[str]:
    for layer in layers(client, tag_of(digest))[:_MOST]:
        repository = _signed_for(client, layer, digest, key)
        if repository is not None:
            yield repository


def _signed_for(client: Client, layer: Descriptor, digest: str, key: EllipticCurvePublicKey) -> str | None:
    """Return the repository in a signature; None if it is not by this key or about another digest."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if layer.media_type != PAYLOAD_TYPE or ANNOTATION not in layer.annotations or layer.size > _LARGEST:
        return None
    try:
        made = base64.b64decode(layer.annotations[ANNOTATION], validate=True)
        data = reader.blob(client, layer)
        key.verify(made, data, ec.ECDSA(hashes.SHA256()))
        critical: Any = json.loads(data)["critical"]
        if critical["type"] != _KIND or critical["image"]["docker-manifest-digest"] != digest:
            return None
        return _repository(critical["identity"]["docker-reference"])
    except (InvalidSignature, binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        return None
    except RegistryError:
        # The document is missing in the registry or does not match its digest: ignore it.
        return None


def _repository(text: object) -> str:
    """Normalise a repository; other tools append a tag, or use another name for Docker Hub."""
    try:
        found = parse(str(text))
    except InputError:
        return printable(str(text))
    return f"{DOCKER_HUB}/{found.path}" if found.host in _HUBS else found.name


def _config(layers: list[dict[str, Any]]) -> bytes:
    digests = [layer["digest"] for layer in layers]
    return documents.dumps(
        {
            "architecture": "",
            "config": {},
            "created": "0001-01-01T00:00:00Z",
            "history": [{"created": "0001-01-01T00:00:00Z"} for _ in digests],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
