"""Build an image again in an empty store, to check that recipe and lock give the same bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from imagebuilder.core.progress import Progress
from imagebuilder.core.reference import parse
from imagebuilder.engines import embedded
from imagebuilder.engines.embedded import BuildContext, Built
from imagebuilder.host.site import RegistrySite, Site
from imagebuilder.image import repack
from imagebuilder.plan import NO_PROJECT, Plan, Project
from imagebuilder.registry.cache import Cache
from imagebuilder.store import Store, explained, sparse
from imagebuilder.workflow.sharing import open_cache
from imagebuilder.workflow.source import RecipeSource


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """The digests of the image and its layers that recipe and lock give here, and the duration in seconds."""

    digest: str
    layers: tuple[str, ...]
    seconds: float


@contextmanager
def fresh_build(plan: Plan, context: BuildContext) -> Iterator[tuple[Built, Store]]:
    """Make every layer of an image again, in an empty store that is removed afterwards.

    It shares the downloads of the given store. Each is checked against the lock's hash when it is used, and
    new downloads are kept.

    Raises:
        ImagebuilderError: as a build does.

    """
    with context.store.work() as folder:
        fresh = Store(folder / "store")
        downloads = context.store.root / "downloads"
        for wheel in context.lock.wheels:
            sparse.fill(context.store, wheel.sha256)  # the empty store has no layers to take the bytes from
        with explained(downloads):
            downloads.mkdir(parents=True, exist_ok=True)
            fresh.root.mkdir()
            (fresh.root / "downloads").symlink_to(downloads.absolute())
        yield embedded.build(plan, replace(context, store=fresh, remake=True)), fresh


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to build again.

    Attributes:
        platform: the image's.
        project: the user's files in it, as its labels have them.
        folder: these files are in folders relative to it.
        inputs: the repository that keeps what the image was built from; "" for the site's cache.
        plain_http: speak plain HTTP with that repository's registry if it does not speak TLS.
        zstd: pack the layers with zstd, as `push --compression zstd` does.

    """

    platform: str
    project: Project = NO_PROJECT
    folder: Path = Path()
    inputs: str = ""
    plain_http: bool = False
    zstd: bool = False


def rebuild(source: RecipeSource, store: Store, site: Site, progress: Progress, target: Target) -> Rebuilt:
    """Build an image from the recipe and the lock that are attached to it, and from the user's own files.

    Raises:
        BuildError: a layer could not be made, or the user's files are not those of the image.
        LockError: the lock does not match the recipe and this version's catalog.
        FetchError: a package is no longer available.
        StoreError: the disk is full.

    """
    lock, plan = source.read(target.platform, target.project)
    context = BuildContext(
        lock=lock,
        store=store,
        site=site,
        progress=progress,
        request=partial(source.request, plan.platform),
        recipe_folder=target.folder,
        cache=_cache(site, target, progress),
    )
    started = time.monotonic()
    with fresh_build(plan, context) as (built, fresh):
        image = built.image
        if target.zstd:
            image = repack.repack(image, fresh).images[image.manifest]
        return Rebuilt(
            digest=image.manifest,
            layers=tuple(layer.record.digest for layer in image.layers),
            seconds=time.monotonic() - started,
        )


def _cache(site: Site, target: Target, progress: Progress) -> Cache | None:
    """Return the repository to ask first for packages: where the image's are kept, else the site's cache."""
    if not target.inputs:
        return open_cache(site, progress.note)
    host = parse(target.inputs).host
    own = dict(site.registries).get(host, RegistrySite())
    plain = replace(own, plain_http=own.plain_http or target.plain_http)
    others = tuple(item for item in site.registries if item[0] != host)
    return Cache(target.inputs, replace(site, registries=(*others, (host, plain))), progress.note)
