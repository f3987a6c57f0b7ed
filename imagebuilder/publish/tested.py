"""Find an image in a registry for a smoke test: which manifest a name means, and what is attached to it.

Everything that the test needs is in the image's config, which its digest covers. An attached lock is compared
with it. An attached recipe is never read: what it decides for a test is in the labels.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.errors import ImagebuilderError, InputError
from imagebuilder.host.site import Site
from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import published, whole
from imagebuilder.publish.attest.bundle import SOURCE
from imagebuilder.publish.attest.provenance import LOCK
from imagebuilder.publish.attest.published import Published
from imagebuilder.registry import options_for, parse

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Registered:
    """An image in a registry.

    Attributes:
        repository: host and path.
        digest: of the manifest, for one platform.
        lock: the checksum of the attached lock that its labels name; empty if none is attached.

    """

    repository: str
    digest: str
    lock: str

    @property
    def reference(self) -> str:
        """The name by which an engine pulls exactly this manifest."""
        return f"{self.repository}@{self.digest}"


def find(text: str, site: Site, *, platform: str = "", plain_http: bool = False) -> Registered:
    """Resolve an image's name to one manifest, and compare the attached lock with its labels.

    Args:
        text: the name, with a tag or a digest.
        site: how to reach the registry.
        platform: which image of an index; by default that of this host.
        plain_http: use plain HTTP with a registry that does not speak TLS.

    Raises:
        InputError: it is not such a name, it has no image for the platform, or the attached lock and the
            labels name different pins.
        RegistryError: the registry does not have it, cannot be read, or sends something damaged.

    """
    options = options_for(site, parse(text).host, plain_http=plain_http)
    client = published.open_image(text, options)
    index = whole.read(client)
    if index is not None:
        wanted = platform or platforms.own() or platforms.DEFAULT
        client = whole.parts(index, client, options, wanted)[wanted]
    image = published.read(client)
    if platform and image.platform != platform:
        raise InputError(f"is an image for {image.platform}, not for {platform}", where=text)
    return Registered(repository=client.reference.name, digest=image.digest, lock=_lock(image))


def _lock(image: Published) -> str:
    """Return the checksum of the attached lock that the labels name, if its pins are theirs.

    Everybody who may push may attach something, so a lock that the labels do not name is nobody's.
    """
    named = image.labels.get(label_names.LOCK, "")
    for attachment in image.attachments:
        if attachment.kind is not SOURCE:
            continue
        try:
            file = lockfile.loads(attachment.files[LOCK].decode("utf-8"), LOCK)
        except (ImagebuilderError, UnicodeDecodeError) as error:
            log.warning("the attached %s cannot be read: %s", attachment.digest, error)
            continue
        for section in file.sections:
            if section.checksum != named:
                continue
            if dict(section.pins) != label_names.pins(image.labels):
                raise InputError(
                    "its labels name other pins than the lock that they name", where=str(image.reference)
                )
            return named
        log.warning("the attached lock %s is not the one that the image's labels name", attachment.digest)
    return ""
