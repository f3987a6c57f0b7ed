"""The splicer: it makes a layer of wheels without compressing them again.

A wheel is a zip of raw deflate streams, and a layer is a tar in gzip, whose members hold raw deflate streams
too. So each file costs a tar header, in a gzip member that is not compressed, and a copy of its stream
between a gzip header of ten bytes and a trailer with CRC and size, which the zip directory has. No compressor
is involved, so the bytes depend on the wheels alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from imagebuilder.core.progress import Advance
from imagebuilder.errors import BuildError, Problem
from imagebuilder.layers import archive
from imagebuilder.layers.wheels import placement
from imagebuilder.layers.wheels.file import WheelFile, read_wheel
from imagebuilder.layers.wheels.members import Member, opened
from imagebuilder.layers.wheels.placement import Placed, VenvLayout
from imagebuilder.layers.wheels.splice import Splice
from imagebuilder.plan import WheelLayer
from imagebuilder.store import Extent, LayerRecord, Store, check_bytes, sparse

# Paths in site-packages where projects install their own tests and documents by accident. Nobody imports them
# from there, and two wheels often differ there. As with pip, the later wheel wins.
_JUNK = re.compile(r"(tests?|docs?|examples?|benchmarks?|scripts|tools)/.*|[^/]+(?<!\.py)(?<!\.so)(?<!\.pth)")

# Of modules bytecode is made, and metadata is compared with the lock.
_READ_AGAIN = re.compile(r"\.py$|^[^/]+\.dist-info/", re.IGNORECASE)


def build_wheel_layer(
    layer: WheelLayer,
    wheels: Mapping[str, Path],
    store: Store,
    advance: Advance,
) -> LayerRecord:
    """Make the layer that installs these wheels into the venv.

    Args:
        layer: the layer to make.
        wheels: the file of each wheel, by hex sha256.
        store: the blob is written to it.
        advance: called with the bytes of wheels done, always from the caller's thread.

    Raises:
        BuildError: a wheel cannot be unpacked safely, or two of them write different content to one path;
            names the wheel and the member.
        DamagedDownloadError: a wheel is not the locked one.
        StoreError: the blob cannot be written.

    """
    environment = VenvLayout(venv=layer.venv, python=layer.python)
    with ThreadPoolExecutor(1) as pool, store.writer() as writer:
        # The disk may have corrupted a wheel since its download was checked, and the layer is kept under the
        # wheels' hashes. Hashing them again in another thread is cheap.
        checks = [
            pool.submit(check_bytes, wheels[wheel.sha256], wheel.sha256, wheel.file) for wheel in layer.wheels
        ]
        try:
            read, placed = _read(layer, wheels, environment)
            with Splice(writer, advance) as splice:
                _write(read, placed, environment, splice)
                made = splice.finish()
        except BuildError:
            # If a wheel is not the locked one, that caused the error: report that instead.
            _raise_first(checks)
            raise
        _raise_first(checks)
        digest, size = writer.commit()
    _note_copies(layer, splice, digest, store)
    advance(_not_copied(layer, placed))
    return LayerRecord(
        digest=digest,
        diff_id=made.diff_id,
        size=size,
        unpacked=made.unpacked,
        media_type=archive.MEDIA_TYPE,
        toc=made.toc,
    )


def merge(wheels: Sequence[Sequence[Placed]], environment: VenvLayout) -> tuple[Placed, ...]:
    """Merge the files of several wheels, sorted by path; a file that is the same in two wheels occurs once.

    With pip the later wheel wins silently, which breaks the earlier one. Here only files that nobody imports
    may differ.

    Raises:
        BuildError: names every path that has different content in two wheels, or that is a file in one and a
            folder in another.

    """
    merged: dict[str, Placed] = {}
    problems: list[Problem] = []
    for item in (item for wheel in wheels for item in wheel):
        other = merged.get(item.path)
        if other is not None and not _is_junk(item.path, environment) and not _same(other, item):
            problems.append(_collision(other, item, "both write", "with different content"))
        merged[item.path] = item
    for item in merged.values():
        for folder in archive.parents(item.path):
            if folder in merged:
                problems.append(_collision(merged[folder], item, "disagree on", "a file in the first only"))
                break
    if problems:
        raise BuildError.of(problems)
    return tuple(merged[path] for path in sorted(merged))


def _note_copies(layer: WheelLayer, splice: Splice, blob: str, store: Store) -> None:
    """Record which parts of the wheels the blob has too, but for what is read again: modules and metadata."""
    for wheel in layer.wheels:
        extents = [
            Extent(start=copy.member.start, size=copy.member.packed, blob=blob, offset=copy.offset)
            for copy in splice.copies
            if copy.member.wheel == wheel.file
            and copy.member.packed >= sparse.LEAST
            and not _READ_AGAIN.search(copy.member.name)
        ]
        sparse.note(store, wheel.sha256, wheel.size, extents)


def _read(
    layer: WheelLayer, wheels: Mapping[str, Path], environment: VenvLayout
) -> tuple[list[WheelFile], tuple[Placed, ...]]:
    read = [read_wheel(wheel.file, wheels[wheel.sha256]) for wheel in layer.wheels]
    slim = dict(layer.slim)
    placed = [placement.place(wheel, environment, slim.get(wheel.file)) for wheel in read]
    return read, merge(placed, environment)


def _not_copied(layer: WheelLayer, placed: Iterable[Placed]) -> int:
    """Count the bytes of wheels that are not copied: zip headers, and files that the layer has rewritten."""
    copied = sum(item.source.packed for item in placed if isinstance(item.source, Member))
    return max(sum(wheel.size for wheel in layer.wheels) - copied, 0)


def _write(
    wheels: Sequence[WheelFile], placed: Sequence[Placed], environment: VenvLayout, splice: Splice
) -> None:
    with ExitStack() as files:
        descriptors = {wheel.file: files.enter_context(opened(wheel.file, wheel.path)) for wheel in wheels}
        for path, mode in _folders(placed, environment):
            splice.folder(path, mode)
        for item in placed:
            splice.file(item, placement.hex_sha256(item), descriptors[item.wheel])


def _same(one: Placed, other: Placed) -> bool:
    # RECORD's hashes are not used: only the later file goes into the layer and is checked against RECORD.
    return one.size == other.size and placement.sha256(one) == placement.sha256(other)


def _is_junk(path: str, environment: VenvLayout) -> bool:
    inside = path.removeprefix(f"{environment.site_packages}/")
    return inside != path and _JUNK.fullmatch(inside) is not None


def _collision(one: Placed, other: Placed, verb: str, how: str) -> Problem:
    wheels = one.wheel if one.wheel == other.wheel else f"{one.wheel} and {other.wheel}"
    return Problem(
        message=f"{verb} `/{one.path}`, {how}",
        where=wheels,
        hint="leave one of them out of the recipe, or choose versions that agree",
    )


def _raise_first(checks: Iterable[Future[None]]) -> None:
    for check in checks:
        check.result()


def _folders(placed: Iterable[Placed], environment: VenvLayout) -> Iterator[tuple[str, int]]:
    """Return every folder above the files with its mode, parents first, so that no engine guesses a mode."""
    names = {folder for item in placed for folder in archive.parents(item.path)}
    for name in sorted(names):
        # The image's user is in the group of the venv; group write permission lets that user run pip.
        inside = name == environment.root or name.startswith(f"{environment.root}/")
        yield name, 0o775 if inside else 0o755
