"""The splicer: wheels become a layer without being compressed again.

A wheel is a zip of raw deflate streams, and a layer is a tar in gzip, whose members hold raw deflate streams
too. So each file costs a tar header, which goes into a gzip member that is not compressed, and a copy of its
stream between ten bytes of gzip header and its CRC and size, which the zip directory knows. No compressor
takes part, so the bytes depend on the wheels alone.
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
from imagebuilder.layers.wheels.file import Member, WheelFile, opened, read_wheel
from imagebuilder.layers.wheels.placement import Environment, Placed
from imagebuilder.layers.wheels.splice import Splice
from imagebuilder.plan import WheelLayer
from imagebuilder.store import LayerRecord, Store, check_bytes

# Where wheels are known to spill files that nobody imports from there: a project's own tests and documents,
# packed by accident. Two wheels differ there as a matter of course, and as with pip the later one wins.
_JUNK = re.compile(r"(tests?|docs?|examples?|benchmarks?|scripts|tools)/.*|[^/]+(?<!\.py)(?<!\.so)(?<!\.pth)")


def build_wheel_layer(
    layer: WheelLayer,
    wheels: Mapping[str, Path],
    store: Store,
    advance: Advance,
) -> LayerRecord:
    """Make the layer that has these wheels installed in the venv.

    Args:
        layer: the layer to make.
        wheels: hex sha256 and file of each.
        store: where the blob goes.
        advance: told the bytes of wheels done; all calls come from the caller's thread.

    Raises:
        BuildError: a wheel cannot be unpacked safely, or two of them write different things to one path;
            names the wheel and the member.
        DamagedDownloadError: a wheel is not the locked one.
        StoreError: the blob cannot be written.

    """
    environment = Environment(venv=layer.venv, python=layer.python)
    with ThreadPoolExecutor(1) as pool, store.writer() as writer:
        # The store may have rotted since the download was checked, and a layer is kept under the wheels'
        # hashes for good: reading them once more, beside the rest, is cheap.
        checks = [
            pool.submit(check_bytes, wheels[wheel.sha256], wheel.sha256, wheel.file) for wheel in layer.wheels
        ]
        try:
            read, placed = _read(layer, wheels, environment)
            with Splice(writer, advance) as splice:
                _write(read, placed, environment, splice)
                diff_id, unpacked = splice.finish()
        except BuildError:
            # Where the bytes are not the locked ones, that is the cause of all else: say that instead.
            _raise_first(checks)
            raise
        _raise_first(checks)
        digest, size = writer.commit()
    advance(_not_copied(layer, placed))
    return LayerRecord(
        digest=digest, diff_id=diff_id, size=size, unpacked=unpacked, media_type=archive.MEDIA_TYPE
    )


def merge(wheels: Sequence[Sequence[Placed]], environment: Environment) -> tuple[Placed, ...]:
    """Put the files of several wheels together, sorted by path; what is the same in two counts once.

    pip lets the later wheel win silently, and the earlier one is broken from then on; here only files that
    nobody imports may differ.

    Raises:
        BuildError: for every path that two wheels fill differently, or that is a file in one and a folder
            in another.

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


def _read(
    layer: WheelLayer, wheels: Mapping[str, Path], environment: Environment
) -> tuple[list[WheelFile], tuple[Placed, ...]]:
    read = [read_wheel(wheel.file, wheels[wheel.sha256]) for wheel in layer.wheels]
    return read, merge([placement.place(wheel, environment) for wheel in read], environment)


def _not_copied(layer: WheelLayer, placed: Iterable[Placed]) -> int:
    """Count the bytes of wheels that no member has: the zip's own, and what the layer has in another form."""
    copied = sum(item.source.packed for item in placed if isinstance(item.source, Member))
    return max(sum(wheel.size for wheel in layer.wheels) - copied, 0)


def _write(
    wheels: Sequence[WheelFile], placed: Sequence[Placed], environment: Environment, splice: Splice
) -> None:
    with ExitStack() as files:
        descriptors = {wheel.file: files.enter_context(opened(wheel.file, wheel.path)) for wheel in wheels}
        for path, mode in _folders(placed, environment):
            splice.raw(archive.directory(path, mode))
        for item in placed:
            splice.raw(archive.regular(item.path, item.mode, item.size))
            if isinstance(item.source, bytes):
                splice.raw(item.source)
            else:
                splice.member(item.source, item.digest, descriptors[item.wheel])
            splice.raw(archive.padding(item.size))
        splice.raw(archive.TAR_END)


def _same(one: Placed, other: Placed) -> bool:
    # Not by RECORD: only the later one of the two is unpacked into the layer, and held to what that says.
    return one.size == other.size and placement.sha256(one) == placement.sha256(other)


def _is_junk(path: str, environment: Environment) -> bool:
    inside = path.removeprefix(f"{environment.site_packages}/")
    return inside != path and _JUNK.fullmatch(inside) is not None


def _collision(one: Placed, other: Placed, verb: str, how: str) -> Problem:
    wheels = one.wheel if one.wheel == other.wheel else f"{one.wheel} and {other.wheel}"
    return Problem(
        message=f"{verb} `/{one.path}`, {how}",
        where=wheels,
        hint="leave one of them out of the recipe, or take versions of them that agree",
    )


def _raise_first(checks: Iterable[Future[None]]) -> None:
    for check in checks:
        check.result()


def _folders(placed: Iterable[Placed], environment: Environment) -> Iterator[tuple[str, int]]:
    """Name every folder above the files with its mode, parents first: none is left to be guessed."""
    names = {folder for item in placed for folder in archive.parents(item.path)}
    for name in sorted(names):
        # The venv is writable for its group, which is the image's user's: pip works inside.
        inside = name == environment.root or name.startswith(f"{environment.root}/")
        yield name, 0o775 if inside else 0o755
