"""Attaching documents to an image: OCI 1.1 artefacts with a `subject`, and the tag that lists them.

A registry with the referrers API says so in its answer (`OCI-Subject`) and lists them itself. For an older
one the client keeps the list, in an index tagged `sha256-<hex>`, as distribution-spec 1.1 asks ("Unavailable
Referrers API"). Formats: image-spec 1.1, manifest.md ("Guidelines for Artifact Usage").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagebuilder.errors import RegistryError
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST, Descriptor

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Part:
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
    """Files that belong to an image: their type as a whole, and the image's manifest as it is described."""

    artifact_type: str
    subject: Descriptor
    parts: tuple[Part, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> bytes:
        """Write the manifest: a function of the files, so that attaching twice attaches once."""
        config = Part(media_type=EMPTY_TYPE, data=EMPTY).descriptor
        return dumps(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": self.artifact_type,
                "config": config,
                "layers": [part.descriptor for part in self.parts],
                "subject": {
                    "mediaType": self.subject.media_type,
                    "digest": self.subject.digest,
                    "size": self.subject.size,
                },
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            }
        )


def attach(client: Client, artefacts: Sequence[Artefact]) -> tuple[str, ...]:
    """Bring artefacts of one image into the repository, and list them where the registry does not.

    What is listed already is not sent again. Returns their digests, in the order given.

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
        for part in (Part(media_type=EMPTY_TYPE, data=EMPTY), *artefact.parts):
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
    """Send a small blob, unless it is there."""
    digest = digest_of(data)
    for attempt in range(1, client.attempts + 1):
        if client.request("HEAD", f"blobs/{digest}", wanted=(200, 404)).status_code == 200:
            return
        begun = client.request("POST", "blobs/uploads/", wanted=(202,))
        place = client.url(begun.headers.get("Location", ""))
        closing = f"{place}{'&' if '?' in place else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream"}
        # 404: the registry forgot the upload, for example in a restart.
        done = client.request("PUT", closing, wanted=(201, 204, 404), headers=headers, body=data)
        if done.status_code != 404:
            return
        client.pause(attempt, "the registry forgot an upload")
    raise RegistryError("a small blob could not be pushed", where=client.reference.name, hint="push again")


def put_manifest(client: Client, name: str, data: bytes, media_type: str = OCI_MANIFEST) -> bool:
    """Put a manifest under a digest or tag. True when the registry itself lists it with its subject."""
    reply = client.request(
        "PUT", f"manifests/{name}", wanted=(201,), headers={"Content-Type": media_type}, body=data
    )
    return bool(reply.headers.get("OCI-Subject"))


def digest_of(data: bytes) -> str:
    """Name bytes: `sha256:` and 64 digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def dumps(value: object) -> bytes:
    """Write JSON as all manifests here are written: sorted and dense."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _list(client: Client, subject: str, entries: Sequence[Descriptor]) -> None:
    """Add entries to the tag that stands in for the API.

    Two who attach at once could each write a list without the other's entries, and a registry offers no lock:
    so the list is read again until the entries are seen in it.
    """
    tag = reader.fallback_tag(subject)
    for attempt in range(1, _TRIES + 1):
        there = reader.find_manifest(client, tag)
        known: tuple[Descriptor, ...] = ()
        if there is not None:
            if there.media_type != OCI_INDEX:
                raise RegistryError(
                    f"the tag {tag} is taken by something that is no list of artefacts",
                    where=client.reference.name,
                    hint="remove that tag from the registry",
                )
            known = reader.parse(reader.Index, there.data, f"{client.reference.name}:{tag}").manifests
        digests = {item.digest for item in known}
        missing = tuple(entry for entry in entries if entry.digest not in digests)
        if not missing:
            return
        if attempt > 1:
            client.pause(attempt - 1, "somebody else attached at the same moment")
        put_manifest(client, tag, _index((*known, *missing)), OCI_INDEX)
    if not {entry.digest for entry in entries} <= {item.digest for item in reader.referrers(client, subject)}:
        raise RegistryError(
            "what was attached does not get into the list", where=client.reference.name, hint="push again"
        )


def _index(entries: tuple[Descriptor, ...]) -> bytes:
    rows = [entry.model_dump(by_alias=True, exclude_defaults=True) for entry in entries]
    return dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": rows})
