"""Check what must be true in every lock, whatever its recipe: nobody reviews seventy kilobytes by eye.

Locks arrive in pull requests and with other people's images. A package's name, version and file name state
the same fact three times, so they have to agree. Every list must also be free of duplicates, and in the order
in which the resolver writes it. `resolve.agreement` compares a lock with its recipe.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from imagebuilder.core import platforms, wheeltags
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import LockError, Problem
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import BaseImage, Build, Compiled, Deb, Lock, ProjectBuild, Source, Wheel

_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_BASE = re.compile(r"[a-z]+:[a-z]+")
_ORIG = re.compile(r"\.orig\.tar\.[a-z0-9]+")
# Texts of an override are printed: each has to be one line.
_LINE = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")
# The newest C library known, for tags of wheels in a lock that does not name its own.
_NEWEST_GLIBC = "2.99"

Problems = Iterator[tuple[str, str]]
"""Key path and message of each problem."""


def require(lock: Lock, where: str) -> None:
    """Refuse a lock that contradicts itself.

    Args:
        lock: any lock.
        where: its file, for messages.

    Raises:
        LockError: every contradiction, each with its key.

    """
    hint = locks.again(where)
    problems = [Problem(message=text, where=f"{where}: {key}", hint=hint) for key, text in _problems(lock)]
    if problems:
        raise LockError.of(problems)


def _problems(lock: Lock) -> Problems:
    yield from _head(lock)
    yield from _sorted("wheels", [wheel.name for wheel in lock.wheels])
    yield from _sorted("debs", [deb.name for deb in lock.debs])
    yield from _sorted("packages", lock.packages)
    yield from _requirements(lock)
    yield from _once("overrides", [item.pin for item in lock.overrides])
    yield from _once("builds", [build.component for build in lock.builds])
    yield from _once("layers", [layer.key for layer in lock.layers])
    yield from _wheels("wheels", lock.wheels, lock)
    yield from _debs("debs", lock.debs, lock)
    for number, build in enumerate(lock.builds):
        yield from _build(f"builds[{number}]", build, lock)
    if lock.project:
        yield from _project(lock.project, lock)
    if lock.image:
        yield from _image(lock.image)
    yield from _hashes(lock)


def _head(lock: Lock) -> Problems:
    """Check the fields that stand alone."""
    if platforms.of(lock.architecture) not in platforms.KNOWN:
        yield "architecture", f"`{lock.architecture}` is not one that images are made for"
    if not _PYTHON.fullmatch(lock.python):
        yield "python", f"`{lock.python}` is not a version of Python as in 3.13"
    if not _BASE.fullmatch(lock.base):
        yield "base", f"`{lock.base}` is not a distribution and its suite"
    for number, item in enumerate(lock.overrides):
        texts = (item.pin, item.wanted, item.locked, *item.contradicts)
        if not all(_LINE.fullmatch(text) for text in texts):
            yield f"overrides[{number}]", "holds text that is not one line"


def _requirements(lock: Lock) -> Problems:
    """Check that requirements are written as the reader of requirement files writes them."""
    if not lock.requirements:
        return
    from imagebuilder.recipe.requirements import is_normal  # late: few recipes have such files

    yield from _once("requirements", [item.file for item in lock.requirements])
    for number, item in enumerate(lock.requirements):
        key = f"requirements[{number}].asked"
        yield from _sorted(key, item.asked)
        for text in item.asked:
            if not is_normal(text):
                yield key, f"`{printable(text)}` is not a requirement in normal form"


def _once(key: str, names: Sequence[str]) -> Problems:
    for name, count in Counter(names).items():
        if count > 1:
            yield key, f"has `{name}` {count} times"


def _sorted(key: str, names: Sequence[str]) -> Problems:
    """Check that a list is in the resolver's order: another order would give another image."""
    yield from _once(key, names)
    if list(names) != sorted(names):
        yield key, "is not in order of names"


def _wheels(key: str, wheels: Iterable[Wheel], lock: Lock) -> Problems:
    tags = _tags(lock)
    for number, wheel in enumerate(wheels):
        try:
            name, version, _, offered = parse_wheel_filename(wheel.file)
        except InvalidWheelFilename:
            yield f"{key}[{number}].file", f"`{wheel.file}` is not the file name of a wheel"
            continue
        if (name, str(version)) != (wheel.name, wheel.version):
            yield (
                f"{key}[{number}].file",
                f"`{wheel.file}` is {name} {version}, and is listed as {wheel.name} {wheel.version}",
            )
        if tags is not None and not any(str(tag) in tags for tag in offered):
            yield (
                f"{key}[{number}].file",
                f"`{wheel.file}` is not for Python {lock.python} on this base ({lock.architecture})",
            )


def _tags(lock: Lock) -> dict[str, int] | None:
    """Rank the wheel tags that fit a lock; None if its Python or platform is wrong, which is reported."""
    machine = platforms.MACHINES.get(platforms.of(lock.architecture))
    if machine is None or not _PYTHON.fullmatch(lock.python):
        return None
    libc = next((package.version for package in lock.installed if package.name == "libc6"), "")
    release = re.match(r"2\.[0-9]{1,2}(?![0-9])", libc)
    return wheeltags.order(lock.python, release[0] if release else _NEWEST_GLIBC, machine)


def _debs(key: str, debs: Iterable[Deb], lock: Lock) -> Problems:
    known = platforms.of(lock.architecture) in platforms.KNOWN
    for number, deb in enumerate(debs):
        place = f"{key}[{number}]"
        if known and deb.architecture not in {lock.architecture, "all"}:
            yield f"{place}.architecture", f"{deb.name} is for {deb.architecture}, not {lock.architecture}"
        # An archive leaves the epoch out of file names, or writes its colon as %3a.
        file = unquote(deb.path.rpartition("/")[2])
        versions = {deb.version, deb.version.partition(":")[2] or deb.version}
        if file not in {f"{deb.name}_{version}_{deb.architecture}.deb" for version in versions}:
            yield (
                f"{place}.path",
                f"`{deb.path}` is not the file of {deb.name} {deb.version} ({deb.architecture})",
            )
        if deb.archive and not lock.image:
            yield (
                f"{place}.archive",
                f"{deb.name} is from {deb.archive}, and a suite has one archive",
            )


def _build(key: str, build: Build, lock: Lock) -> Problems:
    yield from _sorted(f"{key}.packages", build.packages)
    yield from _sorted(f"{key}.system", build.system)
    yield from _sorted(f"{key}.debs", [deb.name for deb in build.debs])
    yield from _sorted(f"{key}.wheels", [wheel.name for wheel in build.wheels])
    yield from _once(f"{key}.sources", [source.file for source in build.sources])
    yield from _wheels(f"{key}.wheels", build.wheels, lock)
    yield from _debs(f"{key}.debs", build.debs, lock)
    image = {deb.name for deb in lock.debs}
    for name in build.system:
        if name not in image:
            yield f"{key}.system", f"names `{name}`, which is not among the debs of the lock"
    for number, deb in enumerate(build.debs):
        if deb.name in image:
            yield f"{key}.debs[{number}]", f"`{deb.name}` is among the debs of the lock too"
    for number, source in enumerate(build.sources):
        if message := _source(source):
            yield f"{key}.sources[{number}]", message
    if build.compiled:
        yield from _compiled(key, build, build.compiled, lock)


def _compiled(key: str, build: Build, compiled: Compiled, lock: Lock) -> Problems:
    there = {wheel.name for wheel in lock.wheels}
    for field in ("against", "beside"):
        names = getattr(compiled, field)
        yield from _sorted(f"{key}.compiled.{field}", names)
        for name in sorted(set(names) - there):
            yield f"{key}.compiled.{field}", f"names `{name}`, which is not among the wheels of the lock"
    for wheel in build.wheels:
        if wheel.name in compiled.against:
            yield f"{key}.wheels", f"has `{wheel.name}`, which is compiled against in the image's version"
    if build.component in there:
        yield "wheels", f"has `{build.component}`, which is compiled"
    for number, patch in enumerate(compiled.patches):
        if hashlib.sha256(patch.text.encode()).hexdigest() != patch.sha256:
            yield f"{key}.compiled.patches[{number}]", f"the text is not that of {patch.file}"


def _project(project: ProjectBuild, lock: Lock) -> Problems:
    yield from _sorted("project.wheels", [wheel.name for wheel in project.wheels])
    yield from _wheels("project.wheels", project.wheels, lock)
    # Two packages of one name in one venv: which of them is imported would be chance.
    for key, wheels in (("wheels", lock.wheels), ("project.wheels", project.wheels)):
        for number, wheel in enumerate(wheels):
            if wheel.name == project.name:
                yield f"{key}[{number}]", f"`{wheel.name}` is the name of the project itself"


def _source(source: Source) -> str:
    """Return how a source contradicts itself; "" if it does not."""
    if bool(source.path) != bool(source.suite) or (source.upstream and source.path):
        return f"{source.file} states two origins, or half of one"
    if source.origin == "debian":
        upstream = source.version.partition(":")[2] or source.version
        upstream = upstream.rpartition("-")[0] or upstream
        file = unquote(source.path.rpartition("/")[2])
        start = f"{source.name}_{upstream}"
        named = file.startswith(start) and _ORIG.fullmatch(file.removeprefix(start)) is not None
        return "" if named and source.file == file else f"{file} is not of {source.name} {source.version}"
    if source.origin == "index":
        try:
            name, version = parse_sdist_filename(source.file)
        except InvalidSdistFilename:
            return f"`{source.file}` is not the file name of a source distribution"
        if (name, str(version)) != (source.name, source.version):
            return f"`{source.file}` is {name} {version}, not {source.name} {source.version}"
    return ""


def _image(image: BaseImage) -> Problems:
    names = [(package.name, package.architecture) for package in image.packages]
    if names != sorted(set(names)):
        yield "image.packages", "is not in order of names, or names one twice"
    if list(image.archives) != sorted(set(image.archives)):
        yield "image.archives", "is not in order of names, or names one twice"


def _hashes(lock: Lock) -> Problems:
    """Check that each hash belongs to one file: two names for the same bytes would be one package."""
    files: dict[str, str] = {}
    for key, items in _lists(lock):
        for number, item in enumerate(items):
            name = item.path if isinstance(item, Deb) else item.file
            other = files.setdefault(item.sha256, name)
            if other != name:
                yield f"{key}[{number}].sha256", f"{name} has the hash of {other}"


def _lists(lock: Lock) -> Iterator[tuple[str, Sequence[Deb | Wheel | Source]]]:
    yield "wheels", lock.wheels
    yield "debs", lock.debs
    for number, build in enumerate(lock.builds):
        yield f"builds[{number}].debs", build.debs
        yield f"builds[{number}].wheels", build.wheels
        yield f"builds[{number}].sources", build.sources
    if lock.project:
        yield "project.wheels", lock.project.wheels
