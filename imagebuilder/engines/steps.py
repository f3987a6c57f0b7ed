"""The steps of a build: each makes one layer, or a system with all its parts, and writes it to the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagebuilder.core.progress import Advance
from imagebuilder.engines.agreement import require_build, require_package, require_package_build
from imagebuilder.engines.context import BuildContext, Step
from imagebuilder.fetch.locked import Package
from imagebuilder.host.tools import choose_tools
from imagebuilder.layers.built import build_built_layer
from imagebuilder.layers.bytecode.interpreter import Interpreters
from imagebuilder.layers.bytecode.layer import build_bytecode_layer
from imagebuilder.layers.files import build_files_layer, build_keys_layer
from imagebuilder.layers.imported import import_layer
from imagebuilder.layers.package import build_package_layer, build_package_wheel
from imagebuilder.layers.project import find
from imagebuilder.layers.system.install import build_os_layer, build_os_parts
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock.model import Deb, Source, Wheel
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    OsLayer,
    OsPart,
    PackageLayer,
    UpperOsLayer,
    WheelLayer,
    parts,
)
from imagebuilder.store import LayerRecord, Store


def make(
    step: Step, context: BuildContext, pythons: Interpreters, advance: Advance
) -> dict[str, LayerRecord]:
    """Make a layer, or all parts of a system.

    Args:
        step: the layer or the system; every package that it needs is in the store.
        context: lock, store, site and progress of the build.
        pythons: the build's interpreters, which compile modules.
        advance: called with the bytes done; an exception that it raises ends the step.

    Returns:
        The records by the layers' keys; the store has them too.

    Raises:
        BuildError: the step failed.
        DamagedDownloadError: a download is no longer the locked package.
        StoreError: the store is full or not writable.

    """
    if isinstance(step, OsLayer) and (planned := parts(step)):
        return _make_parts(step, planned, context, advance)
    return {step.key: _make_one(step, context, pythons, advance)}


def packages(layer: Step) -> tuple[Package, ...]:
    """Return the packages that must be downloaded before a step."""
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
        case PackageLayer():
            needed = (*layer.below, *layer.packages, *layer.requirements.wheels)
        case FilesLayer() | KeysLayer():
            pass
    return needed


def _make_one(layer: Step, context: BuildContext, pythons: Interpreters, advance: Advance) -> LayerRecord:
    store, progress = context.store, context.progress
    # If another build makes the same layer, wait for it, and then use its record.
    with store.exclusive(layer.key):
        record = store.layer(layer.key)
        if record is not None:
            progress.end(layer.key, layer.title, "cached", record.size)
            return record
        try:
            record = _made(layer, context, pythons, advance)
        except BaseException:
            progress.end(layer.key, layer.title, "failed")
            raise
        store.put_layer(layer.key, record)
    progress.end(layer.key, layer.title, "done", record.size)
    return record


def _made(layer: Step, context: BuildContext, pythons: Interpreters, advance: Advance) -> LayerRecord:
    store, progress = context.store, context.progress
    match layer:
        case ImportedLayer():
            progress.begin(layer.key, layer.title, "checking", layer.blob.size)
            record = import_layer(layer, store, advance)
        case OsLayer():
            progress.begin(layer.key, layer.title, "installing")
            files = _files(layer.debs, store)
            record = build_os_layer(layer, files, store, advance, choose_tools(context.site))
        case BuiltLayer():
            progress.begin(layer.key, layer.title, "compiling")
            require_build(context, layer)
            files = _files((*layer.root.debs, *layer.wheels, *layer.sources), store)
            tools = choose_tools(context.site)
            below = _blobs(layer.below, store)
            record = build_built_layer(layer, files, below, store, advance, tools=tools)
        case WheelLayer():
            progress.begin(layer.key, layer.title, "splicing", sum(w.size for w in layer.wheels))
            record = build_wheel_layer(layer, _files(layer.wheels, store), store, advance)
        case BytecodeLayer():
            progress.begin(layer.key, layer.title, "compiling")
            files = _files((*layer.wheels, *layer.packages), store)
            record = build_bytecode_layer(layer, files, store, advance, pythons)
        case FilesLayer():
            progress.begin(layer.key, layer.title, "writing")
            record = build_files_layer(layer, store)
        case PackageLayer():
            progress.begin(layer.key, layer.title, "building")
            record = _make_package(layer, context, advance)
        case KeysLayer():
            progress.begin(layer.key, layer.title, "making")
            record = build_keys_layer(layer, store)
    return record


def _make_package(layer: PackageLayer, context: BuildContext, advance: Advance) -> LayerRecord:
    """Make a project's wheel, unless the store has it, and unpack it."""
    store = context.store
    wheel = store.layer(layer.wheel_key)
    if wheel is None:
        require_package_build(context, layer)
        files = _files((*layer.packages, *layer.requirements.wheels), store)
        folder = find(context.recipe_folder, layer.source, layer.title)
        wheel = build_package_wheel(layer, folder, files, store, tools=choose_tools(context.site))
        require_package(context, layer, store.blob(wheel.digest))
        store.put_layer(layer.wheel_key, wheel)
    return build_package_layer(layer, wheel, store, advance)


def _make_parts(
    system: OsLayer, planned: Sequence[OsPart], context: BuildContext, advance: Advance
) -> dict[str, LayerRecord]:
    """Install a system, and make all its parts, also those in the store, which come out the same."""
    store, progress = context.store, context.progress
    with store.exclusive(system.key):
        recorded = {part.key: store.layer(part.key) for part in planned}
        records = {key: record for key, record in recorded.items() if record is not None}
        done = "cached"
        if len(records) < len(planned):
            progress.begin(system.key, system.title, "installing")
            tools = choose_tools(context.site)
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


def _blobs(layers: Sequence[BuiltLayer], store: Store) -> tuple[Path, ...]:
    """Return the blobs of layers that the store has."""
    records = [store.layer(layer.key) for layer in layers]
    return tuple(store.blob(record.digest) for record in records if record is not None)


def _files(packages: Sequence[Deb | Source | Wheel], store: Store) -> dict[str, Path]:
    return {package.sha256: store.download(package.sha256) for package in packages}
