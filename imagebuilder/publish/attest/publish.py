"""Attaching documents and signatures to an image in a registry."""

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
    """What was attached: kind and digest of each artefact, and how many signatures were made."""

    artefacts: tuple[tuple[str, str], ...]
    signed: int


def attach(
    client: Client,
    subject: Descriptor,
    documents: tuple[ImageDocument, ...],
    key: EllipticCurvePrivateKey | None = None,
) -> Attached:
    """Attach documents to an image, and sign the image and each of them; the provenance as cosign does, too.

    A push does this before any tag stands for the image: whoever finds the tag finds the signature too.
    Attaching the same documents again changes nothing.

    Args:
        client: of the repository, signed in to push.
        subject: the image's manifest.
        documents: what to attach; each is signed on its own, for whoever may push may attach.
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
        # The image last: who sees its signature finds the documents signed.
        signed += sum(signature.sign(client, digest, key) for digest in (*digests, subject.digest))
    kinds = (document.kind.name for document in documents)
    return Attached(artefacts=tuple(zip(kinds, digests, strict=True)), signed=signed)
