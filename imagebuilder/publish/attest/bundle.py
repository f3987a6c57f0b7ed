"""All documents of one image, and the artefacts that carry them."""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder.core import labels as label_names
from imagebuilder.errors import InputError, StoreError
from imagebuilder.plan import PackageLayer, Plan, Project
from imagebuilder.publish import proof
from imagebuilder.publish.attest import licences, provenance, sbom
from imagebuilder.publish.attest.provenance import LOCK, RECIPE, Origin
from imagebuilder.registry.artefacts import Artefact, ArtefactBlob
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST, Descriptor
from imagebuilder.store import ImageRecord, IndexRecord, Store
from imagebuilder.workflow import labels
from imagebuilder.workflow.source import RecipeSource

# The folder of a package's metadata, with its version.
_DIST_INFO = re.compile(r"/[^/]+-([^/-]+)\.dist-info(?:/|$)")
# The annotation in which cosign and others look for the type of a statement.
PREDICATE_TYPE = "in-toto.io/predicate-type"


@dataclass(frozen=True, kw_only=True)
class DocumentKind:
    """A kind of document: its name, its artifact type, and its files with their media types."""

    name: str
    artifact_type: str
    files: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...] = ()


SPDX = DocumentKind(
    name="SPDX",
    artifact_type="application/spdx+json",
    files=(("sbom.spdx.json", "application/spdx+json"),),
)
CYCLONEDX = DocumentKind(
    name="CycloneDX",
    artifact_type="application/vnd.cyclonedx+json",
    files=(("sbom.cdx.json", "application/vnd.cyclonedx+json"),),
)
PROVENANCE = DocumentKind(
    name="provenance",
    artifact_type="application/vnd.in-toto+json",
    files=(("provenance.json", "application/vnd.in-toto+json"),),
    annotations=((PREDICATE_TYPE, provenance.PREDICATE),),
)
REPORT = DocumentKind(
    name="report",
    artifact_type="application/vnd.imagebuilder.smoke-report.v1+json",
    files=(("smoke-report.json", "application/vnd.imagebuilder.smoke-report.v1+json"),),
)
SOURCE = DocumentKind(
    name="source",
    artifact_type="application/vnd.imagebuilder.source.v1",
    files=((RECIPE, "application/yaml"), (LOCK, "application/vnd.imagebuilder.lock.v1+json")),
)
KINDS = (SPDX, CYCLONEDX, PROVENANCE, REPORT, SOURCE)


@dataclass(frozen=True, kw_only=True)
class ImageDocument:
    """The files of one kind, by name."""

    kind: DocumentKind
    files: Mapping[str, bytes]

    def artefact(self, subject: Descriptor) -> Artefact:
        """Return the artefact that attaches it to an image."""
        return Artefact(
            artifact_type=self.kind.artifact_type,
            subject=subject,
            parts=tuple(
                ArtefactBlob(
                    media_type=media_type, data=self.files[name], annotations={label_names.TITLE: name}
                )
                for name, media_type in self.kind.files
            ),
            annotations=dict(self.kind.annotations),
        )


def subject_of(image: ImageRecord | IndexRecord, store: Store) -> Descriptor:
    """Return the descriptor of an image or index in the store, as artefacts refer to it.

    Raises:
        StoreError: the store has lost its manifest.

    """
    path = store.blob(image.manifest)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(
            "the store has lost the manifest", where=str(path), hint=f"build {image.name} again"
        ) from error
    media_type = OCI_INDEX if isinstance(image, IndexRecord) else OCI_MANIFEST
    return Descriptor(media_type=media_type, digest=image.manifest, size=size)


def documents(  # noqa: PLR0917 - all but the first three have a default
    image: ImageRecord,
    store: Store,
    source: RecipeSource,
    waivers: tuple[str, ...] = (),
    created: int = 0,
    sent: ImageRecord | None = None,
) -> tuple[ImageDocument, ...]:
    """Make all documents of an image: bills of materials, report, source, and provenance that covers them.

    A push attaches these files and nothing else, besides signatures over them.

    Args:
        image: an image in the store.
        store: has its layers, and its smoke report if there is one.
        source: the recipe and lock that it was built from.
        waivers: gates that were waived for this push.
        created: the time in the documents, in seconds since 1970.
        sent: the same image with its layers packed in another way, if that is what the documents are about.

    Raises:
        InputError: the source or the report is damaged.
        LockError: recipe and lock do not match each other, or this image.
        StoreError: a layer is missing, or is not what recipe and lock give.

    """
    lock, plan = source.read(image.platform, Project.of_labels(labels(image, store)))
    plan = plan.of_image({layer.title for layer in image.layers})
    sent = sent or image
    with store.in_use():
        material = sbom.Material(
            name=image.name,
            digest=sent.manifest,
            tag=image.tag,
            lock=lock,
            debs=licences.of_debs(image, store, plan.system_layers),
            wheels=licences.of_wheels(image, lock, store),
            own=sbom.own_parts(
                plan,
                [(layer.record.digest, layer.record.size) for layer in sent.layers],
                _package_version(plan, image, store),
            ),
            created=created,
        )
        found = [
            _single(SPDX, sbom.spdx(material)),
            _single(CYCLONEDX, sbom.cyclonedx(material)),
            *_report(image, sent, store),
        ]
        origin = Origin(
            image=sent,
            plan=plan,
            lock=lock,
            source=source,
            records=tuple(store.known_layer(layer.key) for layer in plan.layers),
            waivers=waivers,
            byproducts={name: data for document in found for name, data in document.files.items()},
        )
        found.append(_single(PROVENANCE, provenance.statement(origin)))
    texts = {RECIPE: source.recipe.encode(), LOCK: source.lock.encode()}
    return (*found, ImageDocument(kind=SOURCE, files=texts))


def _package_version(plan: Plan, image: ImageRecord, store: Store) -> str:
    """Return the version of the user's package, from its layer; "" without a package or its layer."""
    for layer, made in zip(plan.layers, image.layers, strict=False):
        if isinstance(layer, PackageLayer):
            with (
                contextlib.suppress(OSError, tarfile.TarError),
                tarfile.open(store.blob(made.record.digest), "r|gz") as tar,
            ):
                found = (_DIST_INFO.search(member.name) for member in tar)
                return next((match[1] for match in found if match), "")
    return ""


def claimed_time(environment: Mapping[str, str] = os.environ) -> int:
    """Return the time for documents: SOURCE_DATE_EPOCH, else 0, so that equal images have equal documents.

    https://reproducible-builds.org/specs/source-date-epoch/

    Raises:
        InputError: the variable is not a number of seconds.

    """
    text = environment.get("SOURCE_DATE_EPOCH", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= len("253402300799")):
        raise InputError(f"`{text}` is not a number of seconds", where="SOURCE_DATE_EPOCH")
    return int(text)


def _single(kind: DocumentKind, data: bytes) -> ImageDocument:
    ((name, _),) = kind.files
    return ImageDocument(kind=kind, files={name: data})


def _report(image: ImageRecord, sent: ImageRecord, store: Store) -> tuple[ImageDocument, ...]:
    path = store.report(image.manifest)
    if not path.exists():
        return ()
    hint = "run the smoke test again"
    try:
        found = proof.in_store(image, store)
    except (OSError, ValueError) as error:
        raise InputError(f"the report cannot be used: {error}", where=str(path), hint=hint) from None
    if not found.is_about_image:
        raise InputError("the report is about another image", where=str(path), hint=hint)
    if sent is not image and found.report.config != image.config:
        raise InputError(
            "the report does not name the image's config: it is no proof for layers with another compression",
            where=str(path),
            hint=hint,
        )
    return (_single(REPORT, found.data),)


def kind_of(artifact_type: str, annotations: Mapping[str, Any]) -> DocumentKind | None:
    """Recognise a kind by its artifact type; None for documents of other tools."""
    for kind in KINDS:
        if kind.artifact_type == artifact_type and all(
            annotations.get(name) == value for name, value in kind.annotations
        ):
            return kind
    return None
