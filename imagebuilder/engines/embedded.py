"""The embedded engine: makes the layers of a plan in the store, with no daemon.

What makes layers, and fetches for it, is in `making`: a build that finds every layer in the store needs none
of that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from imagebuilder import emulation, oci, platforms, toolbox
from imagebuilder.engines.workshop import MakeSystem, Workshop, step_of
from imagebuilder.plan import BuiltLayer, BytecodeLayer, DockerOsLayer, Layer, OsLayer, Plan
from imagebuilder.store import ImageRecord, LayerRecord, Store
from imagebuilder.toolbox import HOST, Toolbox

__all__ = ["Built", "MakeSystem", "Workshop", "build", "missing_layers", "require_possible"]


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build did: the image, layers made and reused, bytes fetched, and seconds."""

    image: ImageRecord
    made: int
    reused: int
    fetched: int
    seconds: float


def build(plan: Plan, shop: Workshop) -> Built:
    """Make an image; whatever the store holds already is not made again.

    Raises:
        FetchError: bytes that could not be had, or were not the locked ones.
        BuildError: a layer could not be made.
        StoreError: the store is full or not writable.

    """
    with shop.store.in_use():
        return _build(plan, shop)


def require_possible(layers: Iterable[Layer], tools: Toolbox = HOST) -> None:
    """Make sure, before anything is fetched, that this host can run what has to be run for these layers.

    In a container it is the engine's machine that has to, which says so by itself.

    Raises:
        EnvironmentFault: it cannot; says what to install, or where else to build.

    """
    for layer in layers:
        # What BuildKit runs, it runs where it is.
        step = step_of(layer)
        if isinstance(step, OsLayer | BuiltLayer | BytecodeLayer) and not isinstance(step, DockerOsLayer):
            machine = step.root if isinstance(step, BuiltLayer) else step
            if not tools.contained:
                emulation.require(platforms.of(machine.architecture))


def missing_layers(plan: Plan, store: Store) -> tuple[Layer, ...]:
    """Name the layers of a plan that the store does not have."""
    return tuple(layer for layer in plan.layers if store.layer(layer.key) is None)


def _build(plan: Plan, shop: Workshop) -> Built:
    started = time.monotonic()
    records: dict[str, LayerRecord] = {}
    for layer in plan.layers:
        record = shop.store.layer(layer.key)
        if record is not None:
            records[layer.key] = record
            shop.progress.end(layer.key, layer.title, "cached", record.size)
    missing = [layer for layer in plan.layers if layer.key not in records]
    require_possible(missing, toolbox.choose(shop.site))
    fetched = 0
    if missing:
        # Late: it brings the network, the solvers and all that makes layers.
        from imagebuilder.engines.making import check_wheels, make_layers

        made, fetched = make_layers(missing, shop)
        records.update(made)
        check_wheels(plan, shop)
    image = oci.write_image(plan, [records[layer.key] for layer in plan.layers], shop.store)
    return Built(
        image=image,
        made=len(missing),
        reused=len(plan.layers) - len(missing),
        fetched=fetched,
        seconds=time.monotonic() - started,
    )
