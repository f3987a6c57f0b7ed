"""Making an image again from what is attached to it, to see that it is what it says it is made from."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuilder.attest.source import Source
from imagebuilder.engines import embedded
from imagebuilder.progress import Progress
from imagebuilder.site import Site
from imagebuilder.store import Store, explained


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What came of it: the digest that recipe and lock give here, and the seconds that it took."""

    digest: str
    layers: tuple[str, ...]
    fetched: int
    seconds: float


def rebuild(source: Source, store: Store, site: Site, progress: Progress, platform: str = "") -> Rebuilt:
    """Make every layer anew in an empty store, which is then thrown away.

    Packages that the given store has are taken from there, for each is held to the lock's hash when it is
    used; its layers are not, for those are what is to be proven.

    Raises:
        LockError: recipe and lock are out of step with this version's catalog.
        FetchError: a package is no longer to be had.
        BuildError: a layer could not be made.
        StoreError: the disk is full.

    """
    lock, plan = source.read(platform)
    with store.work() as folder:
        fresh = Store(folder / "store")
        downloads = store.root / "downloads"
        with explained(downloads):
            downloads.mkdir(parents=True, exist_ok=True)
            fresh.root.mkdir()
            # On the same file system, so what is fetched now is kept for later as well.
            (fresh.root / "downloads").symlink_to(downloads.absolute())
        shop = embedded.Workshop(lock=lock, store=fresh, site=site, progress=progress, trusting=False)
        built = embedded.build(plan, shop)
        return Rebuilt(
            digest=built.image.manifest,
            layers=tuple(layer.record.digest for layer in built.image.layers),
            fetched=built.fetched,
            seconds=built.seconds,
        )
