"""Keep beside an image what it was built from: packages, wheels and sources, as one artefact.

Each file is a blob of the repository, so `registry.cache` finds it there by the lock's sha256. The artefact
names all of them, so that the registry keeps them as long as the image.
"""

from __future__ import annotations

from functools import partial

from imagebuilder.core import labels as label_names
from imagebuilder.core.progress import Advance, Progress
from imagebuilder.core.reference import parse
from imagebuilder.fetch import locked
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Lock
from imagebuilder.registry import artefacts, sources
from imagebuilder.registry.artefacts import Artefact
from imagebuilder.registry.blob import Upload
from imagebuilder.registry.cache import fill_wheel
from imagebuilder.registry.client import Client
from imagebuilder.registry.reader import Descriptor
from imagebuilder.registry.upload import Destination, push_blobs
from imagebuilder.store import Store
from imagebuilder.workflow import sharing

TYPE = "application/vnd.imagebuilder.inputs.v1"


def bring(lock: Lock, store: Store, site: Site, progress: Progress) -> None:
    """Download the files of a lock that the store lacks.

    Raises:
        FetchError: files that could not be fetched, or are not the locked ones.
        StoreError: the disk is full or not writable.

    """
    missing = locked.absent((*(lock.image.layers if lock.image else ()), *lock.files), store)
    if not missing:
        return
    row, title, size = "inputs", f"what {lock.recipe} is built from", sum(item.size for item in missing)
    progress.begin(row, title, "downloading", size)
    locked.fetch(
        missing,
        lock,
        store,
        site,
        cache=sharing.open_cache(site, progress.note),
        advance=lambda _sha256, count: progress.advance(row, count),
        finished=lambda _sha256: None,
    )
    progress.end(row, title, "done", size)


def attach(destination: Destination, subject: Descriptor, lock: Lock, store: Store, advance: Advance) -> str:
    """Send the files of a lock that the repository lacks, and attach the artefact that names them.

    Args:
        destination: the image's repository.
        subject: the image's manifest.
        lock: of the image.
        store: has the files, and remembers where they are now.
        advance: called with the bytes that are in the repository.

    Returns:
        The digest of the artefact.

    Raises:
        RegistryError: the registry refused, broke or cannot be reached.

    """
    repository = parse(destination.reference)
    entries = sorted(sharing.packages(lock, store), key=lambda entry: (-entry.size, entry.digest))
    known = sources.known(store, repository)
    linked = {entry.digest: known.get(entry.digest, repository.path) for entry in entries}
    others = {digest: path for digest, path in linked.items() if path != repository.path}
    client = Client(repository, destination.options, "pull,push", tuple(sorted(set(others.values()))))
    blobs = [entry.blob(store) for entry in entries]
    whole = partial(fill_wheel, store)
    push_blobs(client, [Upload(client, blob, others.get(blob.digest, ""), advance, whole) for blob in blobs])
    sources.remember(store, repository, [blob.digest for blob in blobs])
    held = tuple(
        Descriptor(
            media_type=entry.media_type,
            digest=entry.digest,
            size=entry.size,
            annotations={label_names.TITLE: entry.name},
        )
        for entry in sorted(entries, key=lambda entry: (entry.name, entry.digest))
    )
    artefact = Artefact(artifact_type=TYPE, subject=subject, parts=(), held=held)
    (digest,) = artefacts.attach(client, [artefact])
    return digest
