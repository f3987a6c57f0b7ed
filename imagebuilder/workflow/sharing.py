"""Share layers and packages through the site's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.core.progress import Progress
from imagebuilder.core.reference import parse
from imagebuilder.host.site import Site
from imagebuilder.lock.model import BaseLayer, Deb, Lock
from imagebuilder.plan import OWN_LAYER_BYTES, Plan, WheelLayer
from imagebuilder.store import ImageRecord, Store

if TYPE_CHECKING:
    from imagebuilder.registry.cache import Cache, CacheEntry, Filled

_PACKAGE = "application/octet-stream"


def open_cache(site: Site, warn: Callable[[str], None]) -> Cache | None:
    """Return the site's cache, for one command; None if it has none."""
    if not site.cache:
        return None
    from imagebuilder.registry.cache import Cache  # late: it loads the network

    return Cache(site.cache, site, warn)


def bring(image: ImageRecord, store: Store, site: Site, progress: Progress) -> None:
    """Fetch the layers of an image whose bytes are only in a registry.

    Raises:
        StoreError: no registry gives them any more.

    """
    records = [layer.record for layer in image.layers]
    lacking = [record for record in records if not store.has_blob(record.digest, record.size)]
    if not lacking:
        return
    from imagebuilder.layers import hints
    from imagebuilder.registry.cache import require_here  # late: it loads the network

    require_here(lacking, image.name, store, site, progress)
    hints.require_true_tables(lacking, store)


def share(lock: Lock, plan: Plan, store: Store, site: Site, progress: Progress) -> Filled:
    """Put the layers and packages of a lock into the cache: those that are here, and that it lacks.

    A large wheel with a layer of its own stays here: its bytes are in the layer, and only that layer is made
    of it. The user's own files and baked keys are not in the lock, and stay here, too.

    Raises:
        RegistryError: the cache refused, is full, broke or cannot be reached.

    """
    doubled = {f"sha256:{sha256}" for sha256 in _in_own_layers(plan, store)}
    entries = {
        entry.digest: entry
        for entry in (*packages(lock, store), *_layers(plan, store))
        if entry.digest not in doubled
    }
    from imagebuilder.registry import cache  # late: it loads the network

    row, size = "share", sum(entry.size for entry in entries.values() if entry.path.is_file())
    progress.begin(row, site.cache, "sharing", size)
    with store.in_use():
        try:
            filled = cache.fill(
                tuple(entries.values()),
                parse(site.cache).with_tag(lock.checksum),
                store,
                site,
                lambda count: progress.advance(row, count),
            )
        except BaseException:
            progress.end(row, site.cache, "failed")
            raise
    progress.end(row, site.cache, "done", filled.bytes)
    return filled


def _in_own_layers(plan: Plan, store: Store) -> Iterator[str]:
    """Yield the sha256 of the large wheels that are alone in a layer whose bytes are known."""
    for layer in plan.locked:
        if isinstance(layer, WheelLayer) and len(layer.wheels) == 1 and store.known_layer(layer.key):
            (wheel,) = layer.wheels
            if wheel.size >= OWN_LAYER_BYTES:
                yield wheel.sha256


def _layers(plan: Plan, store: Store) -> Iterator[CacheEntry]:
    from imagebuilder.registry.cache import CacheEntry

    for layer in plan.locked:
        record = store.known_layer(layer.key)
        if record is not None and not record.is_empty:
            yield CacheEntry(
                digest=record.digest,
                size=record.size,
                media_type=record.media_type,
                name=layer.title,
                path=store.blob(record.digest),
            )


def packages(lock: Lock, store: Store) -> Iterator[CacheEntry]:
    """Yield the packages, wheels and sources of a lock, and the layers of a base from a registry."""
    from imagebuilder.registry.cache import CacheEntry

    for package in (*lock.files, *(lock.image.layers if lock.image else ())):
        if isinstance(package, BaseLayer):
            name = package.digest
        else:
            name = Path(package.path).name if isinstance(package, Deb) else package.file
        yield CacheEntry(
            digest=f"sha256:{package.sha256}",
            size=package.size,
            media_type=_PACKAGE,
            name=name,
            path=store.download(package.sha256),
        )
