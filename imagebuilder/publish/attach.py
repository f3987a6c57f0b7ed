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
    report = _tested(data)
    reference = parse(request.image)
    document = ImageDocument(kind=REPORT, files={REPORT.files[0][0]: data})
    search_documents({report.digest: (document,)}, (), store, site)
    options = options_for(site, reference.host, plain_http=request.plain_http)
    client = Client(reference, options, "pull,push")
    subject = _subject(client, reference, report)
    (attached,) = artefacts.attach(client, [document.artefact(subject)])
    signed = request.key is not None and signature.sign(client, attached, request.key)
    return ReportAttached(reference=f"{reference.name}@{subject.digest}", digest=attached, signed=signed)


def _tested(data: bytes) -> Report:
    """Return a report, which names the image that it is about.

    Raises:
        InputError: it is not a report, or names no digest.

    """
    try:
        report = reports.parse(data, Report)
    except ValidationError as error:
        message = f"is not a report of this version: {error.errors()[0]['msg']}"
        raise InputError(message, where="the report") from None
    except ValueError as error:
        raise InputError(f"is not a report: it {printable(str(error))}", where="the report") from None
    if not report.digest:
        raise InputError(
            "does not say which image it is about",
            where="the report",
            hint="test the image by its digest: imagebuilder smoke-test REGISTRY/NAME@DIGEST",
        )
    return report


def _subject(client: Client, reference: Reference, report: Report) -> Descriptor:
    """Find the image that a report is about, and check that the reference means it.

    Its layers may be packed in another way than those of the image that was tested: the config is the same.

    Raises:
        InputError: it means another image, or the repository does not have the image.

    """
    digest = report.digest
    tested = parse(f"{reference.name}@{digest}")
    if name := reference.digest or reference.tag:
        found = reader.image_index(client, name)
        meant = [client.get_manifest(name)] if found is None else found[1].manifests
        digests = [entry.digest for entry in meant]
        if digest not in digests:
            digest = next((other for other in digests if _packs(client, other, report)), "")
        if not digest:
            raise InputError(
                f"the report is about another image, {report.digest}",
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


def _packs(client: Client, digest: str, report: Report) -> bool:
    """Return True if an image of the repository has the config of the tested one."""
    return bool(report.config) and reader.image_manifest(client, digest)[1].config.digest == report.config
