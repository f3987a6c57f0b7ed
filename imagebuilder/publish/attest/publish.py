"""Attach documents and signatures to an image in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuilder.publish.attest import envelope, signature
from imagebuilder.publish.attest.bundle import PROVENANCE, ImageDocument
from imagebuilder.registry import artefacts
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import Descriptor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What was attached: kind and digest of each artefact, and the number of new signatures."""

    artefacts: tuple[tuple[str, str], ...]
    signed: int


def attach(
    client: Client,
    subject: Descriptor,
    documents: tuple[ImageDocument, ...],
    key: EllipticCurvePrivateKey | None = None,
) -> Attached:
    """Attach documents to an image, and sign the image, each document, and the provenance as an attestation.

    A push does this before it sets tags, so an image that is found by its tag has its signature.
    Attaching the same documents again changes nothing.

    Args:
        client: for the repository, signed in to push.
        subject: the image's manifest.
        documents: what to attach. Each is signed separately, because anybody who may push can attach others.
        key: to sign with; None for no signatures.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    digests = artefacts.attach(client, [document.artefact(subject) for document in documents])
    signed = 0
    if key is not None:
        for document in documents:
            if document.kind == PROVENANCE:
                statement = document.files[PROVENANCE.files[0][0]]
                signed += envelope.attest(client, subject.digest, statement, key)
        # The image last: once its signature exists, those of its documents do too.
        signed += sum(signature.sign(client, digest, key) for digest in (*digests, subject.digest))
    kinds = (document.kind.name for document in documents)
    return Attached(artefacts=tuple(zip(kinds, digests, strict=True)), signed=signed)
