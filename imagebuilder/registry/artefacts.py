"""Attach documents to an image: OCI 1.1 artefacts with a `subject`, and the tag that lists them.

A registry with the referrers API says so in its reply (`OCI-Subject`) and lists them itself. For others the
client keeps the list, in an index tagged `sha256-<hex>`, as distribution-spec 1.1 requires ("Unavailable
Referrers API"). Formats: image-spec 1.1, manifest.md ("Guidelines for Artifact Usage").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagebuilder.core.documents import digest_of, dumps
from imagebuilder.core.retries import Budget
from imagebuilder.errors import RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client, RequestOptions
from imagebuilder.registry.faults import Interrupted
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST, Descriptor

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"


@dataclass(frozen=True, kw_only=True)
class ArtefactBlob:
    """One file of an artefact."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptor(self) -> dict[str, Any]:
        """How a manifest names it."""
        found: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": digest_of(self.data),
            "size": len(self.data),
        }
        return {**found, "annotations": dict(self.annotations)} if self.annotations else found


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """Files that belong to an image.

    Attributes:
        artifact_type: their type as a whole.
        subject: the image's manifest, as it is described.
        parts: the files.
        held: files that the repository has already.
        annotations: of the artefact.

    """

    artifact_type: str
    subject: Descriptor
    parts: tuple[ArtefactBlob, ...]
    held: tuple[Descriptor, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> bytes:
        """Write the manifest: a function of the files, so that attaching twice attaches once."""
        config = ArtefactBlob(media_type=EMPTY_TYPE, data=EMPTY).descriptor
        return dumps(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": self.artifact_type,
                "config": config,
                "layers": [
                    *(part.descriptor for part in self.parts),
                    *(item.model_dump(by_alias=True, exclude_defaults=True) for item in self.held),
                ],
                "subject": {
                    "mediaType": self.subject.media_type,
                    "digest": self.subject.digest,
                    "size": self.subject.size,
                },
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            }
        )


def attach(client: Client, artefacts: Sequence[Artefact]) -> tuple[str, ...]:
    """Push artefacts of one image, and list them if the registry does not do so itself.

    Artefacts that are listed already are not sent again. Returns their digests, in the order given.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    if not artefacts:
        return ()
    subject = artefacts[0].subject.digest
    there = {item.digest for item in reader.referrers(client, subject)}
    digests, unlisted, sent = [], [], set()
    for artefact in artefacts:
        data = artefact.manifest()
        digests.append(digest_of(data))
        if digests[-1] in there:
            continue
        for part in (ArtefactBlob(media_type=EMPTY_TYPE, data=EMPTY), *artefact.parts):
            if part.data not in sent:
                put_blob(client, part.data)
                sent.add(part.data)
        if not put_manifest(client, digests[-1], data):
            unlisted.append(
                Descriptor(
                    media_type=OCI_MANIFEST,
                    digest=digests[-1],
                    size=len(data),
                    artifact_type=artefact.artifact_type,
                    annotations=dict(artefact.annotations),
                )
            )
    if unlisted:
        _list(client, subject, unlisted)
    return tuple(digests)


def put_blob(client: Client, data: bytes) -> None:
    """Send a small blob, unless the repository has it."""
    digest, budget = digest_of(data), client.budget()
    while True:
        there = client.request("HEAD", f"blobs/{digest}", wanted=(200, 404), budget=budget)
        if there.status_code == 200:
            return
        begun = client.request("POST", "blobs/uploads/", wanted=(202,), budget=budget)
        place = client.url(begun.headers.get("Location", ""))
        closing = f"{place}{'&' if '?' in place else '?'}digest={digest}"
        options = RequestOptions(headers={"Content-Type": "application/octet-stream"}, body=data)
        # 404: the registry forgot the upload, for example in a restart.
        done = client.request("PUT", closing, wanted=(201, 204, 404), options=options, budget=budget)
        if done.status_code != 404:
            return
        client.wait(
            budget,
            Interrupted("the registry forgot an upload", where=client.reference.name, hint="push again"),
        )


def put_manifest(
    client: Client, name: str, data: bytes, media_type: str = OCI_MANIFEST, *, budget: Budget | None = None
) -> bool:
    """Put a manifest under a digest or tag. Returns True if the registry itself lists it with its subject."""
    options = RequestOptions(headers={"Content-Type": media_type}, body=data)
    reply = client.request("PUT", f"manifests/{name}", wanted=(201,), options=options, budget=budget)
    return bool(reply.headers.get("OCI-Subject"))


def _list(client: Client, subject: str, entries: Sequence[Descriptor]) -> None:
    """Add entries to the tag that replaces the API.

    Registries have no locks, so two clients that attach at once may overwrite each other's entries. So the
    list is read again until it has the entries.
    """
    tag = reader.fallback_tag(subject)
    budget, written = client.budget(), False
    while True:
        there = reader.find_manifest(client, tag, budget)
        known: tuple[Descriptor, ...] = ()
        if there is not None:
            if there.media_type != OCI_INDEX:
                raise RegistryError(
                    f"the tag {tag} is not a list of artefacts",
                    where=client.reference.name,
                    hint="remove that tag from the registry",
                )
            known = reader.parse(reader.Index, there.data, f"{client.reference.name}:{tag}").manifests
        digests = {item.digest for item in known}
        missing = tuple(entry for entry in entries if entry.digest not in digests)
        if not missing:
            return
        if written:
            lost = "the new entries vanished from the list of artefacts: another client is writing it too"
            client.wait(budget, Interrupted(lost, where=client.reference.name, hint="push again"))
        put_manifest(client, tag, _index((*known, *missing)), OCI_INDEX, budget=budget)
        written = True


def _index(entries: tuple[Descriptor, ...]) -> bytes:
    rows = [entry.model_dump(by_alias=True, exclude_defaults=True) for entry in entries]
    return dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": rows})
