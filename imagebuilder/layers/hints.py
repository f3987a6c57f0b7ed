"""The `layers:` of a lock: digest, diffID and sizes of the layers that its wheels give.

They depend only on the bytes of the wheels, so they are a check: a build makes every layer from its wheels,
and compares the result with the lock. A build never takes a layer from the lock without making it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagebuilder import plan as plans
from imagebuilder.core import process, tarstream
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import KnownLayer, Lock
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.store import LayerRecord, Store, explained

log = logging.getLogger(__name__)


def learn(file: LockFile, store: Store) -> LockFile:
    """Add to locks the records that the store has of their layers.

    Entries of layers that the store does not have are kept if the layer is still one of the lock.

    Args:
        file: the locks; entries of layers that they no longer have are removed.
        store: its records replace the lock's entries, because the store made these layers from the wheels.

    """
    return replace(file, sections=tuple(_learn(lock, store) for lock in file.sections))


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
            message=f"the layer's wheels give {difference}",
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
    )
    return next(
        (f"the {what} {made}, but the lock says {said}" for what, made, said in fields if made != said), ""
    )


def remember(path: Path, store: Store) -> int:
    """Add the store's records of layers to the lock of a recipe.

    Returns:
        The number of layers added; 0 also if the lock cannot be written, because the entries are only a
        check.

    """
    place = locks.path_for(path)
    file = lockfile.read(place)
    made = learn(file, store)
    added = {layer.key for layer in _all_known(made)} - {layer.key for layer in _all_known(file)}
    if made == file:
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


def _learn(lock: Lock, store: Store) -> Lock:
    own = {layer.key: layer for layer in lock.layers}
    keys = (layer.key for layer in plans.wheel_layers(lock))
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
    )


def _all_known(file: LockFile) -> tuple[KnownLayer, ...]:
    return tuple(layer for lock in file.sections for layer in lock.layers)
