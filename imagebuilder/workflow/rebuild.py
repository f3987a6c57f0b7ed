"""Build an image again in an empty store, to check that recipe and lock give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from imagebuilder.core.progress import Progress
from imagebuilder.engines import embedded
from imagebuilder.engines.embedded import BuildContext, Built
from imagebuilder.host.site import Site
from imagebuilder.plan import NO_PROJECT, Plan, Project
from imagebuilder.store import Store, explained
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
        with explained(downloads):
            downloads.mkdir(parents=True, exist_ok=True)
            fresh.root.mkdir()
            (fresh.root / "downloads").symlink_to(downloads.absolute())
        yield embedded.build(plan, replace(context, store=fresh)), fresh


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to build again: a platform's image, and the user's files in it as its labels have them.

    Those files are in folders relative to `folder`.
    """

    platform: str
    project: Project = NO_PROJECT
    folder: Path = Path()


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
    )
    with fresh_build(plan, context) as (built, _):
        return Rebuilt(
            digest=built.image.manifest,
            layers=tuple(layer.record.digest for layer in built.image.layers),
            seconds=built.seconds,
        )
