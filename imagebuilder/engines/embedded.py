"""The embedded engine: makes the layers of a plan in the store, with no daemon.

`schedule` makes layers and fetches for them: a build that finds every layer in the store does not load it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuilder.core import platforms
from imagebuilder.engines.context import BuildContext, step_of
from imagebuilder.host import emulation
from imagebuilder.host.tools import HOST, Tools, choose_tools
from imagebuilder.image import oci
from imagebuilder.layers import hints
from imagebuilder.plan import BuiltLayer, BytecodeLayer, Layer, OsLayer, PackageLayer, Plan, ProjectLayer
from imagebuilder.store import ImageRecord, LayerRecord, Store

__all__ = ["BuildContext", "Built", "build", "missing_layers", "require_possible"]


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build did: the image, its layers made, reused and left in the cache, bytes fetched, seconds."""

    image: ImageRecord
    made: int
    reused: int
    away: int
    fetched: int
    seconds: float


def build(plan: Plan, context: BuildContext) -> Built:
    """Build an image; layers that the store has are reused.

    Raises:
        FetchError: a file could not be downloaded, or is not the locked one.
        LockError: the lock names another package than a file contains, has one that nothing requires, or
            lacks one.
        BuildError: a layer could not be made.
        StoreError: the store is full or not writable.

    """
    with context.store.in_use():
        return _build(plan, context)


def require_possible(layers: Iterable[Layer], tools: Tools = HOST) -> None:
    """Check, before anything is downloaded, that this host can run the programs that make these layers.

    Programs in a tools container run on the engine's machine, which reports such errors itself.

    Raises:
        EnvironmentFault: this host cannot; says what to install, or where else to build.

    """
    for layer in layers:
        if isinstance(layer, ProjectLayer):
            continue
        step = step_of(layer)
        if isinstance(step, OsLayer | BuiltLayer | BytecodeLayer | PackageLayer):
            machine = step.root if isinstance(step, BuiltLayer) else step
            if not tools.contained:
                emulation.require(platforms.of(machine.architecture))


def missing_layers(plan: Plan, store: Store) -> tuple[Layer, ...]:
    """Return the layers of a plan that the store does not have."""
    return tuple(layer for layer in plan.layers if store.layer(layer.key) is None)


def _build(plan: Plan, context: BuildContext) -> Built:
    started = time.monotonic()
    records: dict[str, LayerRecord] = {}
    for layer in plan.layers:
        record = context.store.layer(layer.key)
        if record is not None:
            records[layer.key] = record
            context.progress.end(layer.key, layer.title, "cached", record.size)
    hints.check(context.lock, records)
    shared, fetched = _shared([layer for layer in plan.layers if layer.key not in records], context)
    records.update(shared)
    lacking = [layer for layer in plan.layers if layer.key not in records]
    missing = [layer for layer in lacking if not isinstance(layer, ProjectLayer)]
    require_possible(missing, choose_tools(context.site))
    compared = context.request if missing or not _was_made(plan, context.store) else None
    if compared:
        # Imported here, because it loads the solvers, which a build without changes does not need.
        from imagebuilder.engines import agreement

        agreement.require_base(context)
    if missing:
        # Imported here, because it loads the network, the solvers and everything that makes layers.
        from imagebuilder.engines.schedule import check_wheels, make_layers

        made, downloaded = make_layers(missing, context)
        fetched += downloaded
        records.update(made)
        check_wheels(plan, context)
        hints.check(context.lock, records)
    if compared:
        agreement.require_image(context, compared())
    records.update(
        {layer.key: _own_layer(layer, context) for layer in lacking if isinstance(layer, ProjectLayer)}
    )
    image = oci.write_image(plan, [records[layer.key] for layer in plan.layers], context.store)
    made_here = sum(not records[layer.key].is_empty for layer in lacking)
    away = sum(not context.store.has_blob(layer.record.digest) for layer in image.layers)
    return Built(
        image=image,
        made=made_here,
        reused=len(image.layers) - made_here - away,
        away=away,
        fetched=fetched,
        seconds=time.monotonic() - started,
    )


def _shared(layers: Sequence[Layer], context: BuildContext) -> tuple[dict[str, LayerRecord], int]:
    """Take layers from the cache; returns them by key, and the bytes fetched.

    A layer's bytes stay away until somebody needs them: a component that is compiled against this one, or
    the caller, see `BuildContext.whole`.
    """
    if context.cache is None or context.remake or not layers:
        return {}, 0
    from imagebuilder.registry import cache  # late: a build without one does not load the network

    store, progress = context.store, context.progress
    received: list[int] = []
    taken = cache.take(hints.claims(context.lock, layers), context.cache, store)
    compiles = any(isinstance(layer, BuiltLayer) and layer.key not in taken for layer in layers)
    needed = [
        taken[layer.key]
        for layer in layers
        if layer.key in taken and (context.whole or (compiles and isinstance(layer, BuiltLayer)))
    ]
    lacking = [record for record in needed if not store.has_blob(record.digest)]
    if size := sum(record.size for record in lacking):
        progress.begin("cache", context.cache.reference.name, "fetching", size)

        def advance(count: int) -> None:
            received.append(count)
            progress.advance("cache", count)

        lost = cache.bring(lacking, store, context.site, advance, progress.note)
        hints.require_true_tables(lacking, store)
        taken = {key: record for key, record in taken.items() if record not in lost}
        progress.end("cache", context.cache.reference.name, "done", size)
    for layer in layers:
        if layer.key in taken:
            progress.end(layer.key, layer.title, "cached", taken[layer.key].size)
    return taken, sum(received)


def _own_layer(layer: ProjectLayer, context: BuildContext) -> LayerRecord:
    """Make a layer of the user's own files: that waits for no download, and loads none of what does."""
    from imagebuilder.layers import project

    store, progress = context.store, context.progress
    with store.exclusive(layer.key):
        if (record := store.layer(layer.key)) is not None:
            return record
        progress.begin(layer.key, layer.title, "copying")
        try:
            folder = project.find(context.recipe_folder, layer.source, layer.title)
            record = project.build_project_layer(
                layer, folder, store, lambda count: progress.advance(layer.key, count)
            )
        except BaseException:
            progress.end(layer.key, layer.title, "failed")
            raise
        store.put_layer(layer.key, record)
    progress.end(layer.key, layer.title, "done", record.size)
    return record


def _was_made(plan: Plan, store: Store) -> bool:
    """Return whether the store has an image of this lock: then its wheels were compared with it before."""
    return any(image.lock == plan.lock_checksum for image in store.images(plan.name))
