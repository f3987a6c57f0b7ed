"""What is known of layers goes into the lock: the digest and the diffID that wheels give.

The digest of a layer of wheels is had while its blob is written, but its diffID only by unpacking all of it,
which takes longer than everything else. Both follow from the wheels' bytes alone. So what one build learnt
stands in the lock, and a build on another machine copies, hashes and compares.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagebuilder import lock as locks
from imagebuilder import lockfile, process, tarstream
from imagebuilder import plan as plans
from imagebuilder.errors import InputError
from imagebuilder.lock import KnownLayer, Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.store import Store, explained

log = logging.getLogger(__name__)

_PIECE = 1 << 20


def learn(file: LockFile, store: Store, before: LockFile | None = None) -> LockFile:
    """Add to locks what the store, or else an older state of the locks, knows of their layers.

    Args:
        file: the locks; what they know of layers that are theirs no longer is left out.
        store: what it made was proven, so it is believed first.
        before: the locks that these replace.

    """
    old = {layer.key: layer for source in (before, file) if source for layer in _all_known(source)}
    return replace(file, sections=tuple(_learn(lock, store, old) for lock in file.sections))


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


def distrust(plan: Plan, store: Store) -> tuple[str, ...]:
    """Read all layers of wheels that are there, and forget those that are not what their records say.

    A layer that a lock was believed about may have another diffID than that lock said; built again, by a
    workshop that trusts nothing, it has the right one.

    Returns:
        The titles of what was forgotten.

    """
    layers = [layer for layer in plan.layers if isinstance(layer, WheelLayer)]
    with ThreadPoolExecutor(process.cores()) as pool:
        held = list(pool.map(lambda layer: _is_as_recorded(layer, store), layers))
    wrong = [layer for layer, good in zip(layers, held, strict=True) if not good]
    for layer in wrong:
        place = store.layer_path(layer.key)
        with explained(place, "removed"):
            place.unlink(missing_ok=True)
    return tuple(layer.title for layer in wrong)


def _is_as_recorded(layer: WheelLayer, store: Store) -> bool:
    record = store.layer(layer.key)
    if record is None:
        return True
    path = store.blob(record.digest)
    unpacked = hashlib.sha256()
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with tarstream.open_layer(path) as stream:
            while data := stream.read(_PIECE):
                unpacked.update(data)
    except tarstream.errors():
        return False
    return (record.digest, record.diff_id) == (f"sha256:{digest}", f"sha256:{unpacked.hexdigest()}")


def _learn(lock: Lock, store: Store, old: Mapping[str, KnownLayer]) -> Lock:
    keys = (layer.key for layer in plans.wheel_layers(lock))
    found = (_of_store(key, store) or old.get(key) for key in keys)
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
