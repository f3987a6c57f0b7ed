"""Download the layers of a locked base: from its registry, or from the site's mirror of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from imagebuilder.core.reference import parse
from imagebuilder.host.site import Site
from imagebuilder.lock.model import BaseLayer
from imagebuilder.registry import pull, sources
from imagebuilder.registry.client import Client, reader_of
from imagebuilder.store import Store

_PARALLEL = 3


def client_of(name: str, site: Site) -> Client:
    """Make a client for the repository of a base."""
    return reader_of(parse(name), site)


def fetch_layers(
    layers: Sequence[BaseLayer],
    client: Client,
    store: Store,
    *,
    advance: Callable[[str, int], None],
    finished: Callable[[str], None],
) -> None:
    """Download the layers that the store lacks, several at a time.

    Args:
        layers: the layers.
        client: client of a repository that has them.
        store: receives them.
        advance: see `download.fetch`.
        finished: see `download.fetch`.

    Raises:
        FetchError: a layer could not be downloaded, or does not have its digest.
        RegistryError: the registry refused, or cannot be reached.
        StoreError: the disk is full or not writable.

    """

    def one(layer: BaseLayer) -> None:
        blob = pull.Layer(
            digest=layer.digest, diff_id=layer.diff_id, size=layer.size, media_type=layer.media_type
        )
        pull.fetch(client, blob, store, lambda count: advance(layer.sha256, count))
        finished(layer.sha256)

    unique = tuple({layer.digest: layer for layer in layers}.values())
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="base") as pool:
        jobs = [pool.submit(one, layer) for layer in unique]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            client.stopped.set()
            for job in jobs:
                job.cancel()
            raise
    # A push to the same registry can then link them instead of sending them.
    sources.remember(store, client.reference, [layer.digest for layer in unique])
