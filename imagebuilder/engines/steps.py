"""The steps of a build: each makes one layer, or a system with all its parts, and records it in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagebuilder import toolbox
from imagebuilder.engines.workshop import Step, Workshop
from imagebuilder.layers.built import build_built_layer
from imagebuilder.layers.bytecode import build_bytecode_layer
from imagebuilder.layers.files import build_files_layer
from imagebuilder.layers.imported import import_layer
from imagebuilder.layers.interpreter import Interpreters
from imagebuilder.layers.keys import build_keys_layer
from imagebuilder.layers.system import build_os_layer, build_os_parts
from imagebuilder.layers.wheel import build_wheel_layer
from imagebuilder.lock import Deb, Source, Wheel
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    OsLayer,
    OsPart,
    UpperOsLayer,
    WheelLayer,
    parts,
)
from imagebuilder.progress import Advance
from imagebuilder.store import LayerRecord, Store
from imagebuilder.supply import Package


def make(step: Step, shop: Workshop, pythons: Interpreters, advance: Advance) -> dict[str, LayerRecord]:
    """Make a layer, or all parts of a system.

    Args:
        step: what; every package that it needs is in the store.
        shop: where and for whom.
        pythons: of this build, for what is compiled by the image's own.
        advance: told the bytes done; what it raises ends the step.

    Returns:
        The records by the layers' keys; the store has them too.

    Raises:
        BuildError: it could not be made.
        DamagedDownloadError: a package is not the locked one any more.
        StoreError: the store is full or not writable.

    """
    if isinstance(step, OsLayer) and (planned := parts(step)):
        return _make_parts(step, planned, shop, advance)
    return {step.key: _make_one(step, shop, pythons, advance)}


def packages(layer: Step) -> tuple[Package, ...]:
    """Name what has to be downloaded before a step can be made."""
    needed: tuple[Package, ...] = ()
    match layer:
        case ImportedLayer():
            needed = (layer.blob,)
        case UpperOsLayer():
            needed = (*layer.below, *layer.debs)
        case OsLayer():
            needed = layer.debs
        case BuiltLayer():
            needed = (*layer.root.debs, *layer.wheels, *layer.sources)
        case WheelLayer():
            needed = layer.wheels
        case BytecodeLayer():
            needed = (*layer.below, *layer.packages, *layer.wheels)
        case FilesLayer() | KeysLayer():
            pass
    return needed


def _make_one(layer: Step, shop: Workshop, pythons: Interpreters, advance: Advance) -> LayerRecord:
    store, progress = shop.store, shop.progress
    # Two builds that want the same layer: the second waits, and then finds it made.
    with store.exclusive(layer.key):
        record = store.layer(layer.key)
        if record is not None:
            progress.end(layer.key, layer.title, "cached", record.size)
            return record
        try:
            match layer:
                case ImportedLayer():
                    progress.begin(layer.key, layer.title, "checking", layer.blob.size)
                    record = import_layer(layer, store, advance)
                case OsLayer():
                    progress.begin(layer.key, layer.title, "installing")
                    record = _make_system(layer, shop, advance)
                case BuiltLayer():
                    progress.begin(layer.key, layer.title, "compiling")
                    files = _files((*layer.root.debs, *layer.wheels, *layer.sources), store)
                    tools = toolbox.choose(shop.site)
                    below = _blobs(layer.below, store)
                    record = build_built_layer(layer, files, below, store, advance, tools=tools)
                case WheelLayer():
                    progress.begin(layer.key, layer.title, "splicing", sum(w.size for w in layer.wheels))
                    known = shop.known(layer.key)
                    record = build_wheel_layer(layer, _files(layer.wheels, store), store, advance, known)
                case BytecodeLayer():
                    progress.begin(layer.key, layer.title, "compiling")
                    files = _files((*layer.wheels, *layer.packages), store)
                    record = build_bytecode_layer(layer, files, store, advance, pythons)
                case FilesLayer():
                    progress.begin(layer.key, layer.title, "writing")
                    record = build_files_layer(layer, store)
                case KeysLayer():
                    progress.begin(layer.key, layer.title, "making")
                    record = build_keys_layer(layer, store)
        except BaseException:
            progress.end(layer.key, layer.title, "failed")
            raise
        store.put_layer(layer.key, record)
    progress.end(layer.key, layer.title, "done", record.size)
    return record


def _make_parts(
    system: OsLayer, planned: Sequence[OsPart], shop: Workshop, advance: Advance
) -> dict[str, LayerRecord]:
    """Install a system, and make all its parts of it; those that are there already come out the same."""
    store, progress = shop.store, shop.progress
    with store.exclusive(system.key):
        found = {part.key: store.layer(part.key) for part in planned}
        records = {key: record for key, record in found.items() if record is not None}
        done = "cached"
        if len(records) < len(planned):
            progress.begin(system.key, system.title, "installing")
            tools = toolbox.choose(shop.site)
            try:
                made = build_os_parts(planned, _files(system.debs, store), store, advance, tools)
            except BaseException:
                progress.end(system.key, system.title, "failed")
                raise
            records = {part.key: record for part, record in zip(planned, made, strict=True)}
            done = "done"
            for part in planned:
                store.put_layer(part.key, records[part.key])
                store.put_layer(part.likely, records[part.key])
    progress.end(system.key, system.title, done, sum(record.size for record in records.values()))
    for part in planned:
        progress.end(part.key, part.title, done, records[part.key].size)
    return records


def _make_system(layer: OsLayer, shop: Workshop, advance: Advance) -> LayerRecord:
    debs = _files(layer.debs, shop.store)
    if shop.make_system is not None:
        return shop.make_system(layer, debs, shop.store, advance)
    return build_os_layer(layer, debs, shop.store, advance, toolbox.choose(shop.site))


def _blobs(layers: Sequence[BuiltLayer], store: Store) -> tuple[Path, ...]:
    """Find layers that were made before, or were there."""
    records = [store.layer(layer.key) for layer in layers]
    return tuple(store.blob(record.digest) for record in records if record is not None)


def _files(packages: Sequence[Deb | Source | Wheel], store: Store) -> dict[str, Path]:
    return {package.sha256: store.download(package.sha256) for package in packages}
