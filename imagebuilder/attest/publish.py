"""Attaching documents and signatures to an image in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuilder.attest import signature
from imagebuilder.attest.bundle import Document
from imagebuilder.registry import artefacts
from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.reader import Descriptor
from imagebuilder.registry.reference import parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What was attached: kind and digest of each artefact, and how many signatures were made."""

    artefacts: tuple[tuple[str, str], ...]
    signed: int


def attach(
    subject: Descriptor,
    documents: tuple[Document, ...],
    reference: str,
    *,
    options: Options,
    key: EllipticCurvePrivateKey | None = None,
) -> Attached:
    """Attach documents to an image, and sign the image and each of them.

    This may be done before the image is there, and is: whoever then finds a tag that stands for it finds the
    signature too. Attaching the same documents again changes nothing.

    Args:
        subject: the image's manifest.
        documents: what to attach; each is signed on its own, for whoever may push may attach.
        reference: the repository.
        options: how to reach the registry.
        key: to sign with; None for no signatures.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    client = Client(parse(reference), options, "pull,push")
    digests = artefacts.attach(client, [document.artefact(subject) for document in documents])
    signed = 0
    if key is not None:
        # The image last: who sees its signature finds the documents signed.
        signed = sum(signature.sign(client, digest, key) for digest in (*digests, subject.digest))
    kinds = (document.kind.name for document in documents)
    return Attached(artefacts=tuple(zip(kinds, digests, strict=True)), signed=signed)
