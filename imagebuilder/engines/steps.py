"""The steps of a build: each makes one layer, or a system with all its parts, and writes it to the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.engines.agreement import (
    require_build,
    require_compiled,
    require_package,
    require_package_build,
)
from imagebuilder.engines.context import BuildContext, Step
from imagebuilder.fetch.locked import Package
from imagebuilder.host.tools import Tools, choose_tools
from imagebuilder.layers.built import build_built_layer, build_compiled_wheel
from imagebuilder.layers.bytecode.interpreter import Interpreters
from imagebuilder.layers.bytecode.layer import build_bytecode_layer
from imagebuilder.layers.files import build_files_layer, build_keys_layer
from imagebuilder.layers.imported import import_layer
from imagebuilder.layers.package import build_package_layer, build_package_wheel
from imagebuilder.layers.project import find
from imagebuilder.layers.system.install import build_os_layer, build_os_parts
from imagebuilder.layers.system.listening import listener, steps_heard
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock.model import Deb, Source, Wheel
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    CompiledLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    OsLayer,
    OsPart,
    PackageLayer,
    Plan,
    ProjectLayer,
    UpperOsLayer,
    WheelLayer,
    parts,
)
from imagebuilder.store import LayerRecord, Store, sparse
from imagebuilder.store.cache import Needed


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
        case CompiledLayer():
            needed = (*layer.root.debs, *layer.used, *layer.sources)
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


def needed(plans: Iterable[Plan], store: Store) -> Needed:
    """Return what builds of these plans need of a store; of downloads those for layers that are not made."""
    layers = [(plan.name, layer) for plan in plans for layer in plan.layers]
    keys = {layer.key for _, layer in layers}
    keys |= {layer.wheel_key for _, layer in layers if isinstance(layer, PackageLayer | CompiledLayer)}
    missing = [layer for _, layer in layers if store.known_layer(layer.key) is None]
    steps: list[Step] = [
        layer.system if isinstance(layer, OsPart) else layer
        for layer in missing
        if not isinstance(layer, ProjectLayer)
    ]
    return Needed(
        images=frozenset(name for name, _ in layers),
        layers=frozenset(keys),
        downloads=frozenset(package.sha256 for step in steps for package in packages(step)),
    )


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
            record = build_os_layer(layer, files, store, advance, _listening(layer, context))
        case CompiledLayer():
            progress.begin(layer.key, layer.title, "compiling")
            record = _make_compiled(layer, context, advance)
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
            # Of one wheel it reads modules only. Of several it may have to compare any file.
            whole = layer.wheels if len(layer.wheels) > 1 else ()
            files = _files((*whole, *layer.packages), store) | _places(layer.wheels, store)
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


def _make_compiled(layer: CompiledLayer, context: BuildContext, advance: Advance) -> LayerRecord:
    """Compile a package to a wheel, unless the store has it, and unpack it."""
    store = context.store
    wheel = store.layer(layer.wheel_key)
    if wheel is None:
        require_build(context, layer)
        files = _files((*layer.root.debs, *layer.used, *layer.sources), store)
        below = (*_blobs(layer.below, store), *(_made_below(part, store) for part in layer.unpacked))
        tools = replace(
            choose_tools(context.site),
            heard=steps_heard(lambda *step: context.progress.at(layer.key, *step)),
        )
        wheel = build_compiled_wheel(layer, files, below, store, tools=tools)
        store.put_layer(layer.wheel_key, wheel)
    require_compiled(context, layer, store.blob(wheel.digest))
    return build_package_layer(layer, wheel, store, advance)


def _made_below(layer: WheelLayer | FilesLayer, store: Store) -> Path:
    """Return the blob of a layer that something is compiled in; the image may have the same one."""
    with store.exclusive(layer.key):
        record = store.layer(layer.key)
        if record is None:
            if isinstance(layer, FilesLayer):
                record = build_files_layer(layer, store)
            else:
                record = build_wheel_layer(layer, _files(layer.wheels, store), store, no_advance)
            store.put_layer(layer.key, record)
    return store.blob(record.digest)


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
            tools = _listening(system, context)
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


def _listening(system: OsLayer, context: BuildContext) -> Tools:
    """Return the tools; from what they print, the row of the system says which package they are at."""
    hear = listener(system, lambda *step: context.progress.at(system.key, *step))
    return replace(choose_tools(context.site), heard=hear)


def _blobs(layers: Sequence[BuiltLayer], store: Store) -> tuple[Path, ...]:
    """Return the blobs of layers that the store has."""
    records = [store.known_layer(layer.key) for layer in layers]
    return tuple(store.blob(record.digest) for record in records if record is not None)


def _files(packages: Sequence[Deb | Source | Wheel], store: Store) -> dict[str, Path]:
    """Return the files of packages, whole."""
    for package in packages:
        sparse.fill(store, package.sha256)
    return _places(packages, store)


def _places(packages: Sequence[Deb | Source | Wheel], store: Store) -> dict[str, Path]:
    return {package.sha256: store.download(package.sha256) for package in packages}
