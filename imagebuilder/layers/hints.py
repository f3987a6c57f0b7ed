"""The `layers:` of a lock: digest, diffID and sizes of the layers that recipe and lock give.

They follow from the packages, so they are a check: every layer that a build makes is compared with them.
They also say which bytes to take from a cache, see `registry.cache`: there the lock decides, as for packages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagebuilder.core import process, tarstream
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.layers import archive, stargz
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import KnownLayer, Lock
from imagebuilder.plan import BytecodeLayer, ImportedLayer, Layer, Plan, WheelLayer
from imagebuilder.store import EMPTY_LAYER, LayerRecord, Store, explained

Keys = Sequence[Sequence[str]]
"""The keys of the layers of each section of a lock file."""

log = logging.getLogger(__name__)


def learn(file: LockFile, keys: Keys, store: Store, earlier: LockFile | None = None) -> LockFile:
    """Add to locks the records that the store has of their layers.

    Entries of layers that the store does not have are kept if the layer is still one of the lock.

    Args:
        file: the locks; entries of layers that they no longer have are removed.
        keys: of the layers of each lock, the lowest first.
        store: its records replace the lock's entries, because the store made these layers from the packages.
        earlier: the lock before it was resolved again; entries of layers that stay the same stay.

    """
    learnt = []
    for platform, lock, own in zip(file.platforms, file.sections, keys, strict=True):
        before = earlier.section(platform) if earlier else None
        learnt.append(_learn(lock, own, store, before.layers if before else ()))
    return replace(file, sections=tuple(learnt))


def claims(lock: Lock, layers: Sequence[Layer]) -> dict[str, LayerRecord]:
    """Return what the lock says of layers, by their key, as the records that making them would give."""
    known = {claim.key: claim for claim in lock.layers}
    found = {layer.key: _claimed(known[layer.key], layer) for layer in layers if layer.key in known}
    return {key: record for key, record in found.items() if record is not None}


def _claimed(claim: KnownLayer, layer: Layer) -> LayerRecord | None:
    if claim.size == 0:
        # Bytecode is often empty, and an image works without it. Another layer cannot be denied by a lock.
        return EMPTY_LAYER if isinstance(layer, BytecodeLayer) else None
    return LayerRecord(
        digest=claim.digest,
        diff_id=claim.diff_id,
        size=claim.size,
        unpacked=claim.unpacked,
        toc=claim.toc,
        media_type=layer.blob.media_type if isinstance(layer, ImportedLayer) else archive.MEDIA_TYPE,
    )


def check(lock: Lock, records: Mapping[str, LayerRecord]) -> None:
    """Compare layers with the entries of the lock.

    Args:
        lock: the layers were made from it.
        records: the layers as they were made, by their key.

    Raises:
        LockError: names every layer that differs from its entry.

    """
    problems = [
        Problem(
            message=f"the layer's packages give {difference}",
            where=f"{lock.recipe}.lock: layers: {claim.key}",
            hint="somebody changed the lock: look at its history; `imagebuilder lock` writes the true values",
        )
        for claim in lock.layers
        if (record := records.get(claim.key)) is not None
        if (difference := _difference(record, claim))
    ]
    if problems:
        raise LockError.of(problems)


def _difference(record: LayerRecord, claim: KnownLayer) -> str:
    fields = (
        ("digest", record.digest, claim.digest),
        ("diffID", record.diff_id, claim.diff_id),
        ("size", record.size, claim.size),
        ("unpacked size", record.unpacked, claim.unpacked),
        ("table of contents", record.toc or "none", claim.toc or "none"),
    )
    return next(
        (f"the {what} {made}, but the lock says {said}" for what, made, said in fields if made != said), ""
    )


def remember(path: Path, file: LockFile, keys: Keys, store: Store) -> int:
    """Add the store's records of layers to the lock of a recipe.

    Args:
        path: the recipe.
        file: its lock, as the build read it.
        keys: see `learn`.
        store: has the layers that the build made.

    Returns:
        The number of layers added; 0 also if the lock has changed meanwhile or cannot be written, because
        the next build adds them.

    """
    place = locks.path_for(path)
    made = learn(file, keys, store)
    added = {layer.key for layer in _all_known(made)} - {layer.key for layer in _all_known(file)}
    if made == file or lockfile.read(place) != file:
        return 0
    try:
        lockfile.write(made, place)
    except InputError as error:
        log.debug("%s", error)
        return 0
    return len(added)


def forget(plan: Plan, store: Store) -> dict[str, LayerRecord]:
    """Remove the records of layers that a verifying build must make again: all of wheels, and damaged ones.

    Returns:
        The removed records by key, to compare with those of the layers made again.

    """
    recorded = {layer: record for layer in plan.layers if (record := store.layer(layer.key)) is not None}
    with ThreadPoolExecutor(process.cores()) as pool:
        held = list(
            pool.map(
                lambda layer: not isinstance(layer, WheelLayer) and is_as_recorded(recorded[layer], store),
                recorded,
            )
        )
    wrong = [layer for layer, good in zip(recorded, held, strict=True) if not good]
    for layer in wrong:
        place = store.layer_path(layer.key)
        with explained(place, "removed"):
            place.unlink(missing_ok=True)
    return {layer.key: recorded[layer] for layer in wrong}


def changed(plan: Plan, before: Mapping[str, LayerRecord], store: Store) -> tuple[str, ...]:
    """Return the titles of layers whose new record differs from the one that `forget` returned."""
    return tuple(
        layer.title
        for layer in plan.layers
        if layer.key in before and store.layer(layer.key) not in (before[layer.key], None)
    )


def require_true_tables(records: Iterable[LayerRecord], store: Store) -> None:
    """Refuse layers from a registry whose table of contents does not say what their tar has.

    The search for secrets and all comparisons read the tar; engines that fetch single files read the table.

    Raises:
        LockError: names a layer; its blob is removed.

    """
    said = {record.digest: record.toc for record in records if record.toc and store.has_blob(record.digest)}
    with ThreadPoolExecutor(process.cores()) as pool:
        found = pool.map(lambda digest: stargz.true_table(store.blob(digest)), said)
        wrong = [digest for digest, toc in zip(said, found, strict=True) if toc != said[digest]]
    for digest in wrong:
        store.drop_away(digest)
        store.blob(digest).unlink(missing_ok=True)
    if wrong:
        raise LockError(
            f"the table of contents of the layer {wrong[0]} is not what its tar gives and the lock says",
            where="layers",
            hint="somebody changed the lock: look at its history; `imagebuilder lock` writes the true values",
        )


def is_as_recorded(record: LayerRecord, store: Store) -> bool:
    """Read a layer, and return whether it has the digest and the diffID of its record."""
    if record.is_empty:
        return True
    try:
        return tarstream.digests(store.blob(record.digest)) == (
            record.digest,
            record.diff_id,
            record.unpacked,
        )
    except OSError:
        return False


def _learn(lock: Lock, keys: Sequence[str], store: Store, earlier: Sequence[KnownLayer]) -> Lock:
    own = {layer.key: layer for layer in (*earlier, *lock.layers)}
    known = (_of_store(key, store) or own.get(key) for key in keys)
    return lock.knowing(tuple(layer for layer in known if layer is not None))


def _of_store(key: str, store: Store) -> KnownLayer | None:
    record = store.layer(key)
    if record is None:
        return None
    return KnownLayer(
        key=key,
        digest=record.digest,
        diff_id=record.diff_id,
        size=record.size,
        unpacked=record.unpacked,
        toc=record.toc,
    )


def _all_known(file: LockFile) -> tuple[KnownLayer, ...]:
    return tuple(layer for lock in file.sections for layer in lock.layers)
