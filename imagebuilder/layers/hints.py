"""What is known of layers goes into the lock: the digest, the diffID and the sizes that wheels gave.

They follow from the wheels' bytes alone, so they serve as a check: a build makes every layer from its wheels,
reads all that it unpacks to, and then holds the result to what the lock says. Nothing is taken from a lock.
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
    """Add to locks what the store has made of their layers.

    What a lock says of other layers stays where it still has them: it was there before, and is only a check.

    Args:
        file: the locks; what they know of layers that are no longer theirs is left out.
        store: what it made was proven, so it counts more than what the lock said.

    """
    return replace(file, sections=tuple(_learn(lock, store) for lock in file.sections))


def check(lock: Lock, records: Mapping[str, LayerRecord]) -> None:
    """Hold layers to what the lock says of them.

    Args:
        lock: that the layers were made from.
        records: of layers by their key, as they were made from the packages.

    Raises:
        LockError: names every layer of which the lock says something else.

    """
    problems = [
        Problem(
            message=f"the layer's wheels give {difference}",
            where=f"{lock.recipe}.lock: layers: {claim.key}",
            hint="somebody changed the lock: look at its history; `imagebuilder lock` writes what is true",
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
        (f"the {what} {made}, and the lock says {said}" for what, made, said in fields if made != said), ""
    )


def remember(path: Path, store: Store) -> int:
    """Write into the lock of the recipe at a path what the store knows of its layers.

    Returns:
        How many layers the lock knows now and did not before; 0 also where it cannot be written, for
        nothing but time is lost by that.

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
    """Forget the layers of a plan that have to be proven again: those of wheels, and what is damaged.

    Returns:
        What was recorded of each, by its key, to be compared with what is made now.

    """
    found = {layer: record for layer in plan.layers if (record := store.layer(layer.key)) is not None}
    with ThreadPoolExecutor(process.cores()) as pool:
        held = list(
            pool.map(
                lambda layer: not isinstance(layer, WheelLayer) and is_as_recorded(found[layer], store), found
            )
        )
    wrong = [layer for layer, good in zip(found, held, strict=True) if not good]
    for layer in wrong:
        place = store.layer_path(layer.key)
        with explained(place, "removed"):
            place.unlink(missing_ok=True)
    return {layer.key: found[layer] for layer in wrong}


def changed(plan: Plan, before: Mapping[str, LayerRecord], store: Store) -> tuple[str, ...]:
    """Name the layers that came out other than was recorded: the titles of those that `forget` gave."""
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
    found = (_of_store(key, store) or own.get(key) for key in keys)
    return lock.knowing(tuple(layer for layer in found if layer is not None))


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
