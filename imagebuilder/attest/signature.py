"""Signatures as cosign writes and reads them: a signed document about a digest, under a tag of its own.

https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md. The tag is `sha256-<hex>.sig`; each
layer of the manifest under it is one signed document, its signature an annotation of that layer. Only keys:
no certificates, no transparency log, so nothing outside the registry is asked.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from imagebuilder.errors import RegistryError
from imagebuilder.registry import artefacts, reader
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import OCI_MANIFEST, Descriptor, ImageManifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_KIND = "cosign container image signature"
# Each may be megabytes to read: more signatures of one image than this is somebody's trap.
_MOST = 64
_LARGEST = 1 << 20


def tag_of(digest: str) -> str:
    """Name the tag under which the signatures of a manifest stand."""
    return f"{reader.fallback_tag(digest)}.sig"


def payload(repository: str, digest: str) -> bytes:
    """Write what is signed: that this digest, in this repository, is meant."""
    return artefacts.dumps(
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
    """Sign a manifest and push the signature, beside those of others. False when this key's is there already.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    known = layers(client, tag_of(digest))
    if any(_is_good(client, layer, digest, key.public_key()) for layer in known[:_MOST]):
        return False
    data = payload(client.reference.name, digest)
    made = base64.b64encode(key.sign(data, ec.ECDSA(hashes.SHA256()))).decode()
    add(
        client,
        tag_of(digest),
        artefacts.Part(media_type=PAYLOAD_TYPE, data=data, annotations={ANNOTATION: made}),
    )
    return True


def add(client: Client, tag: str, part: artefacts.Part) -> None:
    """Put one more document under a tag, as cosign keeps them: each a layer of what looks like an image.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    known = layers(client, tag)
    rows = [*(layer.model_dump(by_alias=True, exclude_defaults=True) for layer in known), part.descriptor]
    config = artefacts.Part(media_type=_CONFIG_TYPE, data=_config(rows))
    for blob in (config.data, part.data):
        artefacts.put_blob(client, blob)
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config.descriptor, "layers": rows}
    artefacts.put_manifest(client, tag, artefacts.dumps(manifest))


def layers(client: Client, tag: str) -> tuple[Descriptor, ...]:
    """Read what stands under a tag of cosign's; nothing where there is no such tag.

    Raises:
        RegistryError: something else stands there.

    """
    found = reader.find_manifest(client, tag)
    if found is None:
        return ()
    return reader.parse(ImageManifest, found.data, f"{client.reference.name}:{tag}").layers


def is_signed(client: Client, digest: str, key: EllipticCurvePublicKey | None) -> bool:
    """Whether a manifest has a signature of this key; without a key, whether it has any at all.

    Raises:
        RegistryError: what stands under the tag of the signatures is none.

    """
    there = layers(client, tag_of(digest))
    if key is None:
        return any(ANNOTATION in layer.annotations for layer in there)
    return any(_is_good(client, layer, digest, key) for layer in there[:_MOST])


def _is_good(client: Client, layer: Descriptor, digest: str, key: EllipticCurvePublicKey) -> bool:
    """Whether a layer is a document about this very digest, signed by this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if layer.media_type != PAYLOAD_TYPE or ANNOTATION not in layer.annotations or layer.size > _LARGEST:
        return False
    try:
        made = base64.b64decode(layer.annotations[ANNOTATION], validate=True)
        data = reader.blob(client, layer)
        key.verify(made, data, ec.ECDSA(hashes.SHA256()))
        critical: Any = json.loads(data)["critical"]
        return bool(critical["type"] == _KIND and critical["image"]["docker-manifest-digest"] == digest)
    except (InvalidSignature, binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        return False
    except RegistryError:
        # The document is gone from the registry, or is not what its digest says: as good as no signature.
        return False


def _config(layers: list[dict[str, Any]]) -> bytes:
    digests = [layer["digest"] for layer in layers]
    return artefacts.dumps(
        {
            "architecture": "",
            "config": {},
            "created": "0001-01-01T00:00:00Z",
            "history": [{"created": "0001-01-01T00:00:00Z"} for _ in digests],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
