"""Package archives besides the distribution's own, at the addresses of the base or of the site."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from imagebuilder.bases import read
from imagebuilder.bases.system import Archive
from imagebuilder.errors import InputError
from imagebuilder.host.site import ArchiveSite, Site
from imagebuilder.lock.model import BaseImage
from imagebuilder.store import Store


def effective(
    archives: Sequence[Archive], site: Site, needed: Collection[str] = frozenset()
) -> tuple[Archive, ...]:
    """Apply the site's addresses to the base's archives, and leave out those that the site disables.

    Args:
        archives: the archives that the base is set up for.
        site: its settings override the base's.
        needed: names of archives to take from the site if the base does not have them.

    Raises:
        InputError: a file with keys cannot be read.

    """
    named = dict(site.archives)
    kept = [
        _moved(archive, named[archive.name]) if archive.name in named else archive
        for archive in archives
        if archive.name not in named or named[archive.name].url
    ]
    known = {archive.name for archive in archives}
    for name in sorted(set(needed) - known):
        if name in named and named[name].url:
            plain = Archive(name=name, uri="", suite="./", components=(), keys=b"", trusted=False)
            kept.append(_moved(plain, named[name]))
    return tuple(kept)


def places(image: BaseImage, store: Store, site: Site, needed: Collection[str]) -> dict[str, str]:
    """Return the current addresses of a locked base's archives: the site's, or else those in its layers.

    Raises:
        InputError: a file with keys cannot be read.

    """
    named = {name: item.url for name, item in site.archives}
    unnamed = set(needed) - named.keys()
    below = read.again(image, store).archives if unnamed else ()
    return {**{archive.name: archive.uri for archive in below}, **named}


def _moved(archive: Archive, place: ArchiveSite) -> Archive:
    keys = archive.keys
    if place.key is not None:
        try:
            keys = place.key.read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror}", where=str(place.key), hint="name a file with public keys"
            ) from error
    return replace(archive, uri=place.url, keys=keys)
