"""The age of an image, with the source of its time. An image built by imagebuilder has its lock's time.

A registry may say when a manifest or a blob arrived (`Last-Modified`, RFC 9110 section 8.8.2). Documents
have a time if `SOURCE_DATE_EPOCH` was set. Images of other tools have one in their config. Files in this
host's store have the times of the file system.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import times
from imagebuilder.errors import RegistryError
from imagebuilder.publish.attest.bundle import CYCLONEDX
from imagebuilder.publish.attest.published import Published
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client
from imagebuilder.store import ImageRecord, Store

_UNITS = (("year", 31_557_600), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, kw_only=True)
class Age:
    """A time, the seconds since then (negative if that clock is ahead of this one), and the source."""

    time: str
    seconds: int
    source: str

    def __str__(self) -> str:
        """Format it: `3 days (2026-01-02T03:04:05Z, when it was built here)`."""
        return f"{_words(self.seconds)} ({self.time}, {self.source})"


def of_store(image: ImageRecord, store: Store) -> Age | None:
    """Return the age by an image's record in the store: the time of its last build."""
    return _made(_modified(store.image_path(image.name)), "when it was built here")


def of_registry(client: Client, image: Published, store: Store) -> Age | None:
    """Return the age by the first available time: the registry's, a document's, the config's, this host's.

    Raises:
        RegistryError: the registry cannot be reached.

    """
    found = (_made(seconds, source) for seconds, source in _told(client, image, store))
    return next((age for age in found if age), None)


def _told(client: Client, image: Published, store: Store) -> Iterator[tuple[float, str]]:
    for place, what in (
        (f"manifests/{image.digest}", "manifest"),
        (f"blobs/{image.manifest.config.digest}", "config"),
    ):
        reply = client.request("HEAD", place, wanted=(200, 404))
        said = times.mail_seconds(reply.headers.get("Last-Modified", ""))
        yield said, f"when its {what} arrived in the registry"
    for attachment in image.attachments:
        if attachment.kind == CYCLONEDX:
            yield _document_time(attachment.data), "the time that its documents claim"
    yield times.seconds(image.config.get("created")), "the time that its config claims"
    yield _modified(store.source(image.digest)), "when this host built the same image"
    yield _modified(store.report(image.digest)), "when this host tested the same image"


def _made(seconds: float, source: str) -> Age | None:
    """Return the age; None for the epoch, which means that there is no time."""
    if not (stamp := times.normal(seconds)):
        return None
    return Age(time=stamp, seconds=int(time.time() - seconds), source=source)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _document_time(data: bytes) -> float:
    try:
        metadata = reader.json_object(data, "documents").get("metadata")
    except RegistryError:
        return 0.0
    return times.seconds(metadata.get("timestamp") if isinstance(metadata, dict) else None)


def _words(seconds: int) -> str:
    """Format a duration in its largest unit.

    >>> _words(90_000), _words(59), _words(-5)
    ('1 day', '59 seconds', 'in the future: one of two clocks is wrong')
    """
    if seconds < 0:
        return "in the future: one of two clocks is wrong"
    name, unit = next(((name, unit) for name, unit in _UNITS if seconds >= unit), ("second", 1))
    count = seconds // unit
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
