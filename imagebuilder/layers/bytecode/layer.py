"""Bytecode of the wheels' modules, as a layer: what pip would leave in `__pycache__`, the same on every host.

Without it every fresh container compiles what it imports (docs/explanation/bytecode.md has the figures).

The format of bytecode is that of one release of Python, so the image's own Python compiles: its locked
packages are unpacked into a folder and run from there. A .pyc tells the time and size of its source, and that
time is the epoch, as of every file in a layer; so a module that somebody changes in a container is compiled
again, as it is after pip.

What the modules of a wheel gave is kept, so that a layer with one more wheel compiles that wheel alone.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.core.progress import Advance
from imagebuilder.core.streams import IterReader
from imagebuilder.errors import BuildError
from imagebuilder.layers import archive
from imagebuilder.layers.bytecode.interpreter import Interpreter, Interpreters
from imagebuilder.layers.files import folder_mode
from imagebuilder.layers.wheels import placement
from imagebuilder.layers.wheels.file import Member, content, opened, read_wheel
from imagebuilder.layers.wheels.layer import merge
from imagebuilder.layers.wheels.placement import Environment, Placed
from imagebuilder.plan import BytecodeLayer
from imagebuilder.store import (
    EMPTY_LAYER,
    DamagedDownloadError,
    LayerRecord,
    Store,
    check_bytes,
    explained,
)

# The head of a record, as compile.py has it: batch, length of the path, length of the content.
_HEAD = struct.Struct("<IIQ")
# What is kept of a wheel: records as compile.py writes them. No image has it: it is the first to be pruned.
_RECORDS = "application/vnd.imagebuilder.bytecode"
# Modules that are compiled in one process: few enough for the cores to share, enough to be worth one. Another
# size may give other bytes: it belongs to the layer's format.
_BATCH_BYTES = 128 << 10
# What one run of the image's Python gets: a second or two, after which a build that was interrupted ends.
_SLICE_BYTES = 8 << 20
# Modules of data have some megabytes, and a compiler may take four hundred bytes for each of theirs.
_LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Where a .pyc is, until it is in the layer."""

    file: Path
    start: int
    size: int

    def read(self) -> bytes:
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


def build_bytecode_layer(
    layer: BytecodeLayer,
    downloads: Mapping[str, Path],
    store: Store,
    advance: Advance,
    pythons: Interpreters,
) -> LayerRecord:
    """Compile the modules of wheels; the record is `EMPTY_LAYER` if there is no module that compiles.

    Args:
        layer: whose, and with which Python.
        downloads: file of every wheel and package, by hex sha256.
        store: where the blob and all temporary files go.
        advance: told the bytes of the layer's tar; before, told of none now and then, so that it can raise.
        pythons: of this build.

    Raises:
        BuildError: a wheel cannot be read safely, or the image's Python does not run.
        DamagedDownloadError: a wheel or package is not the locked one.
        StoreError: the blob cannot be written.

    """
    environment = Environment(venv=layer.venv, python=layer.python)
    with store.work() as folder:
        try:
            wheels = _by_wheel(layer, _modules(layer, downloads, environment))
            found = {key: _kept(key, store) for key in wheels}
            missing = {key: modules for key, modules in wheels.items() if found[key] is None}
            made = dict(record for file in found.values() if file for record in _records(file, layer.python))
            if missing:
                python = pythons.of(layer, downloads)
                for number, batches in enumerate(_slices(chain.from_iterable(missing.values()))):
                    advance(0)
                    made |= _compile(layer, batches, python, folder / f"{number:04}")
            for key, modules in missing.items():
                _keep_for_later(key, modules, made, layer.python, store)
        except BuildError:
            # Where the bytes are not the locked ones, that is the cause of all else: say that instead.
            for wheel in layer.wheels:
                check_bytes(downloads[wheel.sha256], wheel.sha256, wheel.file)
            raise
        if not made:
            return EMPTY_LAYER
        stream = cast("BinaryIO", IterReader(_tar(made)))
        return archive.compress_tar(stream, store, advance)


def bytecode_path(path: str, python: str) -> str:
    """Say where Python looks for the bytecode of a module (PEP 3147)."""
    folder, name = posixpath.split(path)
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A module to be compiled."""

    placed: Placed

    def source(self) -> bytes:
        if isinstance(self.placed.source, Member):
            with opened(self.placed.wheel, self.placed.source.file) as descriptor:
                return content(descriptor, self.placed.source)
        return self.placed.source


def _modules(
    layer: BytecodeLayer, downloads: Mapping[str, Path], environment: Environment
) -> tuple[_Module, ...]:
    """Find the modules, each wheel's own together; those that bring their bytecode along stay as they are."""
    places = {wheel.file: downloads[wheel.sha256] for wheel in layer.wheels}
    order = {wheel.file: number for number, wheel in enumerate(layer.wheels)}
    wheels = [placement.place(read_wheel(file, path), environment) for file, path in places.items()]
    placed = merge(wheels, environment)
    there = {item.path for item in placed}
    found = (
        _Module(placed=item)
        for item in placed
        if item.path.startswith(f"{environment.site_packages}/")
        and item.path.endswith(".py")
        and item.size <= _LARGEST
        and bytecode_path(item.path, layer.python) not in there
    )
    return tuple(sorted(found, key=lambda module: (order[module.placed.wheel], module.placed.path)))


def _by_wheel(layer: BytecodeLayer, modules: Iterable[_Module]) -> dict[str, tuple[_Module, ...]]:
    """Group modules by the key of what those of one wheel give."""
    sha256 = {wheel.file: wheel.sha256 for wheel in layer.wheels}
    groups = [(name, tuple(group)) for name, group in groupby(modules, lambda module: module.placed.wheel)]
    # Not all modules of a wheel: where two wheels have the same one, it is with the later.
    return {layer.part_key(sha256[name], [module.placed.path for module in g]): g for name, g in groups}


def _kept(key: str, store: Store) -> Path | None:
    """Find what an earlier build made of a wheel; None where there is nothing, or it rotted."""
    record = store.layer(key)
    if record is None:
        return None
    place = store.blob(record.digest)
    try:
        check_bytes(place, place.name, place.name)
    except DamagedDownloadError:
        return None
    return place


def _keep_for_later(
    key: str, modules: Iterable[_Module], made: Mapping[str, _Made], python: str, store: Store
) -> None:
    with store.writer() as writer:
        for module in modules:
            item = made.get(bytecode_path(module.placed.path, python))
            if item is not None:
                path = module.placed.path.encode()
                writer.write(_HEAD.pack(0, len(path), item.size) + path + item.read())
        digest, size = writer.commit()
    store.put_layer(
        key, LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type=_RECORDS)
    )


def _slices(modules: Iterable[_Module]) -> Iterator[list[list[_Module]]]:
    """Cut modules into batches, each of one wheel, so that no other wheel changes it; and these into runs."""
    batches: list[list[_Module]] = []
    filled = total = 0
    wheel = ""
    for module in modules:
        if not batches or filled >= _BATCH_BYTES or module.placed.wheel != wheel:
            if total >= _SLICE_BYTES:
                yield batches
                batches, total = [], 0
            batches.append([])
            filled, wheel = 0, module.placed.wheel
        batches[-1].append(module)
        filled += module.placed.size
        total += module.placed.size
    yield batches


def _compile(
    layer: BytecodeLayer, batches: Sequence[Sequence[_Module]], python: Interpreter, place: Path
) -> dict[str, _Made]:
    """Compile some batches into a file; returns where each module's bytecode is, by its path in the image."""
    # Other layers' files are in that folder too.
    name = f"{layer.key}-{place.name}"
    sources, made = python.folder / f"{name}.sources", python.folder / f"{name}.bytecode"
    with explained(sources), sources.open("xb") as out:
        for number, batch in enumerate(batches):
            for module in batch:
                path, data = module.placed.path.encode(), module.source()
                out.write(_HEAD.pack(number, len(path), len(data)) + path + data)
    python.run("compile.py", sources.name, made.name)
    sources.unlink()
    made.rename(place)
    return dict(_records(place, layer.python))


def _records(file: Path, python: str) -> Iterator[tuple[str, _Made]]:
    with file.open("rb") as records:
        while head := records.read(_HEAD.size):
            _, path_length, size = _HEAD.unpack(head)
            path = records.read(path_length).decode()
            yield bytecode_path(path, python), _Made(file=file, start=records.tell(), size=size)
            records.seek(size, 1)


def _tar(made: Mapping[str, _Made]) -> Iterator[bytes]:
    """Write the layer: sorted, every folder listed with the mode that the wheels' layers give it."""
    folders = {folder for path in made for folder in archive.parents(path)}
    for path in sorted({*folders, *made}):
        item = made.get(path)
        if item is None:
            yield archive.directory(path, folder_mode(path))
            continue
        yield archive.regular(path, placement.FILE, item.size) + item.read() + archive.padding(item.size)
    yield archive.TAR_END
