"""A layer of bytecode: the files in `__pycache__` that pip would write, with the same bytes on every host.

Without them every new container compiles the modules that it imports (docs/explanation/bytecode.md has
figures).

Each release of Python has its own format of bytecode, so the image's Python compiles: its locked packages are
unpacked into a folder and run from there. A .pyc contains the time and size of its source. The time is the
epoch, as for every file in a layer. If somebody changes a module in a container, Python compiles it again, as
it does after pip.

The store keeps the bytecode of each wheel, so a layer with one more wheel compiles only that wheel.
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
from imagebuilder.layers import archive, stargz
from imagebuilder.layers.bytecode.interpreter import Interpreter, Interpreters
from imagebuilder.layers.files import folder_mode
from imagebuilder.layers.wheels import placement
from imagebuilder.layers.wheels.file import read_wheel
from imagebuilder.layers.wheels.layer import merge
from imagebuilder.layers.wheels.members import Member, content, opened
from imagebuilder.layers.wheels.placement import Placed, VenvLayout
from imagebuilder.plan import BytecodeLayer
from imagebuilder.store import (
    EMPTY_LAYER,
    DamagedDownloadError,
    LayerRecord,
    Store,
    check_bytes,
    explained,
)

# The header of a record, the same as in compile.py: batch, length of the path, length of the content.
_HEAD = struct.Struct("<IIQ")
# A wheel's bytecode in the store: records as compile.py writes them. No image uses these blobs, so they are
# pruned first.
_RECORDS = "application/vnd.imagebuilder.bytecode"
# Modules of this many bytes are compiled by one process, which is enough work for a process and leaves enough
# batches for all cores. Another size may give other bytes, so it is a part of the layer's format.
_BATCH_BYTES = 128 << 10
# The modules for one run of the image's Python, about two seconds: an interrupted build ends after the
# current run.
_SLICE_BYTES = 8 << 20
# Larger modules are left out. The compiler may need four hundred bytes of memory for each byte of source.
_LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The place of a .pyc until it is in the layer: a part of a file of records."""

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
        layer: the wheels, and the Python that compiles them.
        downloads: the file of every wheel and package, by hex sha256.
        store: the blob and all temporary files are written to it.
        advance: called with the bytes of the layer's tar; before that with 0 from time to time, so that it
            can raise an exception.
        pythons: the interpreters of this build.

    Raises:
        BuildError: a wheel cannot be read safely, or the image's Python does not run.
        DamagedDownloadError: a wheel or package is not the locked one.
        StoreError: the blob cannot be written.

    """
    environment = VenvLayout(venv=layer.venv, python=layer.python)
    with store.work() as folder:
        try:
            wheels = _by_wheel(layer, _modules(layer, downloads, environment))
            kept = {key: _kept(key, store) for key in wheels}
            missing = {key: modules for key, modules in wheels.items() if kept[key] is None}
            made = dict(record for file in kept.values() if file for record in _records(file, layer.python))
            if missing:
                python = pythons.of(layer, downloads)
                for number, batches in enumerate(_slices(chain.from_iterable(missing.values()))):
                    advance(0)
                    made |= _compile(layer, batches, python, folder / f"{number:04}")
            for key, modules in missing.items():
                _keep_for_later(key, modules, made, layer.python, store)
        except BuildError:
            # If a wheel is not the locked one, that caused the error: report that instead.
            for wheel in layer.wheels:
                check_bytes(downloads[wheel.sha256], wheel.sha256, wheel.file)
            raise
        if not made:
            return EMPTY_LAYER
        stream = cast("BinaryIO", IterReader(_tar(made)))
        # A table would add 9 % to the layer, whose files are small and much alike.
        return stargz.compress_tar(stream, store, advance, table=False)


def bytecode_path(path: str, python: str) -> str:
    """Return the path where Python looks for the bytecode of a module (PEP 3147)."""
    folder, name = posixpath.split(path)
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A module to compile."""

    placed: Placed

    def source(self) -> bytes:
        if isinstance(self.placed.source, Member):
            with opened(self.placed.wheel, self.placed.source.file) as descriptor:
                return content(descriptor, self.placed.source)
        return self.placed.source


def _modules(
    layer: BytecodeLayer, downloads: Mapping[str, Path], environment: VenvLayout
) -> tuple[_Module, ...]:
    """Return the modules to compile, wheel by wheel; a module whose wheel has its bytecode is left out."""
    places = {wheel.file: downloads[wheel.sha256] for wheel in layer.wheels}
    order = {wheel.file: number for number, wheel in enumerate(layer.wheels)}
    slim = dict(layer.slim)
    wheels = [
        placement.place(read_wheel(file, path), environment, slim.get(file)) for file, path in places.items()
    ]
    placed = merge(wheels, environment)
    paths = {item.path for item in placed}
    modules = (
        _Module(placed=item)
        for item in placed
        if item.path.startswith(f"{environment.site_packages}/")
        and item.path.endswith(".py")
        and item.size <= _LARGEST
        and bytecode_path(item.path, layer.python) not in paths
    )
    return tuple(sorted(modules, key=lambda module: (order[module.placed.wheel], module.placed.path)))


def _by_wheel(layer: BytecodeLayer, modules: Iterable[_Module]) -> dict[str, tuple[_Module, ...]]:
    """Group modules by wheel; the keys are those under which the store keeps their bytecode."""
    sha256 = {wheel.file: wheel.sha256 for wheel in layer.wheels}
    groups = [(name, tuple(group)) for name, group in groupby(modules, lambda module: module.placed.wheel)]
    # The key names the modules, because a module that two wheels have is compiled with the later wheel only.
    return {layer.part_key(sha256[name], [module.placed.path for module in g]): g for name, g in groups}


def _kept(key: str, store: Store) -> Path | None:
    """Return the file with a wheel's bytecode from an earlier build; None if it is missing or damaged."""
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
    """Divide modules into batches for one process each, and batches into runs of the image's Python.

    All modules of a batch are of one wheel, so that its bytes do not depend on other wheels.
    """
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
    """Compile some batches into a file; returns the bytecode of each module, by its path in the image."""
    # The interpreter's folder is shared by all layers, so the names contain the layer's key.
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
    """Yield the layer's tar: sorted, with an entry for every folder, modes as in the layers of wheels."""
    folders = {folder for path in made for folder in archive.parents(path)}
    for path in sorted({*folders, *made}):
        item = made.get(path)
        if item is None:
            yield archive.directory(path, folder_mode(path))
            continue
        yield archive.regular(path, placement.FILE, item.size) + item.read() + archive.padding(item.size)
    yield archive.TAR_END
