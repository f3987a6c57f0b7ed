"""Downloads the packages of a lock into the store, from where archives and indexes have them now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagebuilder.bases import archives
from imagebuilder.bases.fetch import client_of, fetch_layers
from imagebuilder.fetch import download
from imagebuilder.fetch.download import Download
from imagebuilder.fetch.snapshots import Snapshots
from imagebuilder.host.site import Site
from imagebuilder.lock.model import BaseLayer, Deb, Lock, Source, Wheel
from imagebuilder.registry.cache import Cache, CachedBlob
from imagebuilder.resolve import builds, debian, python
from imagebuilder.store import Store, sparse

Package = Deb | Wheel | Source | BaseLayer
"""A file that a lock names by its sha256 and size."""


def absent(packages: Iterable[Package], store: Store) -> tuple[Package, ...]:
    """Return the packages whose bytes are not in the store."""
    return tuple(p for p in packages if not store.has_download(p.sha256, p.size))


def fetch(
    packages: Sequence[Package],
    lock: Lock,
    store: Store,
    site: Site,
    *,
    cache: Cache | None = None,
    advance: Callable[[str, int], None],
    finished: Callable[[str], None],
) -> None:
    """Download packages of a lock: layers of the base, Debian packages, sources and wheels.

    Debian packages come before wheels, because installing them takes longest. Without packages this does not
    use the network.

    Args:
        packages: the packages to download, all of them from the lock.
        lock: names the base and the release of Python.
        store: the downloads are written to it.
        site: the addresses of archives and indexes.
        cache: is asked first, or None.
        advance: see `download.fetch`.
        finished: see `download.fetch`.

    Raises:
        FetchError: files that could not be fetched, or are not the locked ones; names each.
        StoreError: the disk is full or not writable.

    """
    if cache is not None:
        packages = _from_cache(packages, cache, store, advance, finished)
    layers = [package for package in packages if isinstance(package, BaseLayer)]
    debs = [package for package in packages if isinstance(package, Deb)]
    wheels = [package for package in packages if isinstance(package, Wheel)]
    sources = [package for package in packages if isinstance(package, Source)]
    pooled: list[Deb | Source] = [*debs, *(source for source in sources if source.origin == "debian")]
    sdists = [source for source in sources if source.origin == "index"]
    others = [source for source in sources if source.origin == "upstream"]
    if layers and lock.image:
        fetch_layers(layers, client_of(lock.image.name, site), store, advance=advance, finished=finished)
    if pooled:
        distribution, _, suite = lock.base.partition(":")
        needed = {deb.archive for deb in debs if deb.archive}
        more = archives.places(lock.image, store, site, needed) if needed and lock.image else {}
        urls = debian.locate_debs(pooled, distribution, suite, site, lock.architecture, archives=more)
        download.fetch(_archived(pooled, urls, Snapshots(lock, site)), store, site, advance, finished)
    if others:
        download.fetch(
            _downloads(others, builds.locate_upstream(others, lock, site)), store, site, advance, finished
        )
    glibc = debian.glibc(lock.installed) if sdists or wheels else ""
    if sdists:
        urls = builds.locate_sdists(sdists, lock.python, glibc, site, lock.architecture)
        download.fetch(_downloads(sdists, urls), store, site, advance, finished)
    if wheels:
        wheels.sort(key=lambda wheel: -wheel.size)
        urls = python.locate_wheels(wheels, lock.python, glibc, site, lock.architecture)
        download.fetch(_downloads(wheels, urls), store, site, advance, finished)


def _from_cache(
    packages: Sequence[Package],
    cache: Cache,
    store: Store,
    advance: Callable[[str, int], None],
    finished: Callable[[str], None],
) -> list[Package]:
    """Fetch what the cache has, and return the other packages.

    What came of a file before the cache failed stays, and an archive or index gives the rest of it.
    """
    found = cache.find({_digest(package): package.size for package in packages})
    blobs = [
        CachedBlob(digest=_digest(package), size=package.size, place=store.download(package.sha256))
        for package in packages
        if _digest(package) in found
    ]
    there = cache.fetch(
        blobs,
        store,
        lambda digest, count: advance(digest.removeprefix("sha256:"), count),
        lambda digest: finished(digest.removeprefix("sha256:")),
    )
    return [package for package in packages if _digest(package) not in there]


def _digest(package: Package) -> str:
    return f"sha256:{package.sha256}"


def copy(packages: Iterable[Package], store: Store, target: Store) -> int:
    """Copy packages from one store to another, as hard links where possible; returns their bytes.

    Raises:
        StoreError: the other store is full or not writable.

    """
    total = 0
    for package in packages:
        if not target.has_download(package.sha256, package.size):
            sparse.fill(store, package.sha256)
            target.take_download(store.download(package.sha256), package.sha256)
        total += package.size
    return total


def file_name(package: Deb | Source | Wheel) -> str:
    """Return the name of a package's file in its archive or index."""
    return Path(package.path).name if isinstance(package, Deb) else package.file


def _archived(
    packages: Sequence[Deb | Source], urls: Mapping[str, tuple[str, ...]], snapshots: Snapshots
) -> list[Download]:
    """Return what to download from archives, or from their snapshots where it has been replaced."""
    return [
        replace(
            item,
            others=partial(snapshots.urls, package),
            missing=partial(snapshots.missing, package, item.name),
        )
        for item, package in zip(_downloads(packages, urls), packages, strict=True)
    ]


def _downloads(
    packages: Sequence[Deb | Source | Wheel], urls: Mapping[str, tuple[str, ...]]
) -> list[Download]:
    return [Download(name=file_name(p), urls=urls[p.sha256], size=p.size, sha256=p.sha256) for p in packages]
