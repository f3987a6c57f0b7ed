"""Attach a smoke report to the image in a registry that it is about. The image need not be in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from imagebuilder.core.reference import Reference, parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.host.site import Site
from imagebuilder.publish.attest import signature
from imagebuilder.publish.attest.bundle import REPORT, ImageDocument
from imagebuilder.publish.push import search_documents
from imagebuilder.registry import Client, artefacts, options_for, reader
from imagebuilder.registry.reader import Descriptor
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import Report
from imagebuilder.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """The arguments of attaching a report.

    Attributes:
        image: the image's repository, optionally with the tag or digest that the report has to be about.
        key: to sign the report with; None for no signature. The image itself is not signed.
        plain_http: speak plain HTTP with a registry that does not speak TLS.

    """

    image: str
    key: EllipticCurvePrivateKey | None = None
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportAttached:
    """What was attached: the image by digest, the digest of the document, and whether a signature is new."""

    reference: str
    digest: str
    signed: bool

    @property
    def told(self) -> str:
        """One line that says what was done."""
        signed = ", with a new signature" if self.signed else ""
        return f"attached {self.digest} to {self.reference}{signed}"


def attach(data: bytes, request: AttachRequest, store: Store, site: Site) -> ReportAttached:
    """Attach a report beside those of other hosts. Attaching the same report again changes nothing.

    Args:
        data: the report.
        request: where to.
        store: the report must not name its folder.
        site: the site's settings.

    Raises:
        InputError: it is not a report, or not one on this image.
        GateError: a secret is in it.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    digest = _digest(data)
    reference = parse(request.image)
    document = ImageDocument(kind=REPORT, files={REPORT.files[0][0]: data})
    search_documents({digest: (document,)}, (), store, site)
    options = options_for(site, reference.host, plain_http=request.plain_http)
    client = Client(reference, options, "pull,push")
    subject = _subject(client, reference, digest)
    (attached,) = artefacts.attach(client, [document.artefact(subject)])
    signed = request.key is not None and signature.sign(client, attached, request.key)
    return ReportAttached(reference=f"{reference.name}@{digest}", digest=attached, signed=signed)


def _digest(data: bytes) -> str:
    """Return the digest of the image that a report is about.

    Raises:
        InputError: it is not a report, or names no digest.

    """
    try:
        digest = reports.parse(data, Report).digest
    except ValidationError as error:
        message = f"is not a report of this version: {error.errors()[0]['msg']}"
        raise InputError(message, where="the report") from None
    except ValueError as error:
        raise InputError(f"is not a report: it {printable(str(error))}", where="the report") from None
    if not digest:
        raise InputError(
            "does not say which image it is about",
            where="the report",
            hint="test the image by its digest: imagebuilder smoke-test REGISTRY/NAME@DIGEST",
        )
    return digest


def _subject(client: Client, reference: Reference, digest: str) -> Descriptor:
    """Find the image that a report is about, and check that the reference means it.

    Raises:
        InputError: it means another image, or the repository does not have the image.

    """
    tested = parse(f"{reference.name}@{digest}")
    if name := reference.digest or reference.tag:
        found = reader.image_index(client, name)
        meant = [client.get_manifest(name)] if found is None else found[1].manifests
        if digest not in [entry.digest for entry in meant]:
            raise InputError(
                f"the report is about another image, {digest}",
                where=str(reference),
                hint=f"name the image that was tested, or only its repository: {reference.name}",
            )
    if not client.head_manifest(digest):
        raise InputError(
            "the repository does not have the image that the report is about",
            where=str(tested),
            hint=f"push it first: imagebuilder push --candidate RECIPE {reference.name}",
        )
    raw, _ = reader.image_manifest(client, digest)
    return Descriptor(media_type=raw.media_type, digest=raw.digest, size=len(raw.data))
