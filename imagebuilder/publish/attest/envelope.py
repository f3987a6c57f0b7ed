"""Signed statements, as cosign writes and reads attestations: DSSE envelopes under a separate tag.

The envelope: https://github.com/secure-systems-lab/dsse/blob/master/envelope.md; protocol.md there defines
the signed bytes. cosign keeps envelopes under the tag `sha256-<hex>.att`, one in each layer, with the
statement's predicate type as an annotation: https://github.com/sigstore/cosign/blob/main/specs/ATTESTATION_SPEC.md.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from imagebuilder.core import documents, jsontext
from imagebuilder.errors import RegistryError
from imagebuilder.publish.attest import signature
from imagebuilder.publish.attest.provenance import PREDICATE
from imagebuilder.registry import artefacts, reader
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import Descriptor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_LARGEST = 16 << 20
_MOST = 32


def tag_of(digest: str) -> str:
    """Return the tag for the attestations of a manifest."""
    return f"{reader.fallback_tag(digest)}.att"


def seal(statement: bytes, key: EllipticCurvePrivateKey) -> bytes:
    """Wrap a statement in an envelope, and sign it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    made = key.sign(_signed(PAYLOAD_TYPE, statement), ec.ECDSA(hashes.SHA256()))
    return documents.dumps(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(statement).decode(),
            "signatures": [{"keyid": "", "sig": base64.b64encode(made).decode()}],
        }
    )


def unseal(envelope: bytes, key: EllipticCurvePublicKey) -> bytes | None:
    """Return the statement in an envelope; None if it is malformed, or not signed with this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        found = jsontext.loads(envelope, limit=_LARGEST, unique=True)
        statement = base64.b64decode(found["payload"], validate=True)
        kind, rows = found["payloadType"], found["signatures"]
        if kind != PAYLOAD_TYPE:
            return None
        for row in rows[:_MOST]:
            try:
                made = base64.b64decode(row["sig"], validate=True)
                key.verify(made, _signed(PAYLOAD_TYPE, statement), ec.ECDSA(hashes.SHA256()))
            except InvalidSignature:
                continue
            return statement
    except (ValueError, KeyError, TypeError):
        pass  # not an envelope
    return None


def attest(client: Client, digest: str, statement: bytes, key: EllipticCurvePrivateKey) -> bool:
    """Attach a signed statement beside the existing ones. Returns False if this key's already exists.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    if statement in statements(client, digest, key.public_key()):
        return False
    # cosign 2 requires the signature annotation here too; it is empty, as the signature is in the envelope.
    annotations = {signature.ANNOTATION: "", "predicateType": PREDICATE}
    part = artefacts.ArtefactBlob(
        media_type=ENVELOPE_TYPE, data=seal(statement, key), annotations=annotations
    )
    signature.add(client, tag_of(digest), part)
    return True


def statements(client: Client, digest: str, key: EllipticCurvePublicKey) -> tuple[bytes, ...]:
    """Return the statements about a manifest that are signed with this key.

    Raises:
        RegistryError: the tag for attestations holds something else.

    """
    found = []
    for layer in signature.layers(client, tag_of(digest))[:_MOST]:
        statement = _read(client, layer, key)
        if statement is not None:
            found.append(statement)
    return tuple(found)


def _read(client: Client, layer: Descriptor, key: EllipticCurvePublicKey) -> bytes | None:
    if layer.media_type != ENVELOPE_TYPE or layer.size > _LARGEST:
        return None
    try:
        return unseal(reader.blob(client, layer), key)
    except RegistryError:
        # Missing in the registry, or does not match its digest: ignore it.
        return None


def _signed(kind: str, payload: bytes) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
