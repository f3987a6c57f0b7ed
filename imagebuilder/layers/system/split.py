"""Splits the tar of a system by the owners of its files: one part for each group of packages, and the state.

dpkg's database in the tar says which package owns a file: `info/PACKAGE.list` (paths), `info/PACKAGE.md5sums`
and the `Conffiles` of `status` (contents), and `diversions`; see deb-md5sums(5), dpkg(1), dpkg-divert(1). A
file is in its package's part if it still has the content from the package, so a part depends only on its
packages. Files that scripts made or changed are the state: `status` itself, users, caches, alternatives, the
venv.

The bytes of the entries are copied in the tar's order. Each file or link is in one part. A folder is in every
part with something inside it, always as the same entry. So the parts can be unpacked in any order, need no
whiteouts, and together give the files of the tar.
"""

from __future__ import annotations

import hashlib
import mmap
import posixpath
import re
import tarfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from imagebuilder.core import process
from imagebuilder.core.streams import IterReader
from imagebuilder.errors import BuildError
from imagebuilder.layers.archive import TAR_END, padding, parents
from imagebuilder.plan import STATE
from imagebuilder.plan.slim import Slim

_CHUNK = 1 << 20
_DPKG = "var/lib/dpkg"
_INFO = re.compile(rf"{_DPKG}/info/([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?\.[a-z0-9]+")
_SUM = re.compile(r"([0-9a-f]{32})  (.+)")
_CONFFILE = re.compile(r" /(.+) ([0-9a-f]{32})(?: .*)?")
# Values in place of an MD5: for links, which have no content, and for files whose content no package states.
_NO_CONTENT, _UNKNOWN = "", "unknown"
# The bytecode of a module, in a folder beside the module (PEP 3147).
_COMPILED = re.compile(r"(.*/|)__pycache__/([^/]+)\.[^./]+(?:\.opt-[12])?\.pyc")


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One entry of the tar: its path without `./`, and the range of its bytes, headers included."""

    path: str
    member: tarfile.TarInfo
    start: int
    end: int


def split(tar: BinaryIO, homes: Mapping[str, str], slim: Slim | None = None) -> dict[str, IterReader]:
    """Split a system's tar.

    Args:
        tar: an uncompressed file. Reading a part reads it again, so read one part at a time.
        homes: the part of each package, by the package's name; the files of other packages go to `STATE`.
        slim: files to leave out.

    Returns:
        Each part by its name: those of `homes`, and `STATE`.

    Raises:
        BuildError: the tar is damaged or incomplete.

    """
    tar.seek(0)
    try:
        with tarfile.open(fileobj=tar, mode="r:") as opened:
            entries = tuple(_entry(member) for member in opened.getmembers())
            owners = _Owners(entries, opened)
    except tarfile.TarError as error:
        raise BuildError(f"the system's tar cannot be read: {error}") from error
    entries = _without(entries, slim, frozenset()) if slim else entries
    names = (*dict.fromkeys(homes.values()), STATE)
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for entry, own in zip(entries, _places(entries, owners, homes, tar), strict=True):
        for name in names if entry.path == "" else own:
            parts[name].append((entry.start, entry.end))
    return {name: IterReader(_read(tar, ranges)) for name, ranges in parts.items()}


def reduced(tar: BinaryIO, slim: Slim, base: Collection[str]) -> IterReader:
    """Leave out files of a layer on top of a base: only those that the base does not have, so no whiteouts.

    Raises:
        BuildError: the tar is damaged or incomplete.

    """
    tar.seek(0)
    try:
        with tarfile.open(fileobj=tar, mode="r:") as opened:
            entries = tuple(_entry(member) for member in opened.getmembers())
    except tarfile.TarError as error:
        raise BuildError(f"the system's tar cannot be read: {error}") from error
    return IterReader(_read(tar, [(entry.start, entry.end) for entry in _without(entries, slim, base)]))


def _without(entries: Sequence[_Entry], slim: Slim, base: Collection[str]) -> tuple[_Entry, ...]:
    """Leave out files and links. Folders stay: scripts of packages installed later may expect them."""

    def stays(entry: _Entry) -> bool:
        member = entry.member
        return (
            member.isdir()
            or entry.path in base
            or posixpath.basename(entry.path).startswith(".wh.")
            or not slim.leaves_out(f"/{entry.path}", is_link=member.issym())
        )

    kept = {entry.path for entry in entries if stays(entry)}
    # A hard link needs its target.
    kept |= {_target(entry) for entry in entries if entry.member.islnk() and entry.path in kept}
    return tuple(entry for entry in entries if entry.path in kept)


def _target(entry: _Entry) -> str:
    return posixpath.normpath(f"/{entry.member.linkname}").lstrip("/")


def _read(file: BinaryIO, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield ranges of a file (offset of the first byte, offset after the last), and then the end of a tar."""
    for start, end in _joined(ranges):
        file.seek(start)
        missing = end - start
        while missing:
            data = file.read(min(_CHUNK, missing))
            if not data:
                raise BuildError("the system's tar broke off")
            missing -= len(data)
            yield data
    yield TAR_END


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join adjacent ranges, for fewer and larger reads."""
    begin, last = 0, 0
    for start, end in ranges:
        if start != last:
            if last > begin:
                yield begin, last
            begin = start
        last = end
    if last > begin:
        yield begin, last


def _entry(member: tarfile.TarInfo) -> _Entry:
    size = member.size if member.isreg() else 0
    return _Entry(
        path=posixpath.normpath(f"/{member.name}").lstrip("/"),
        member=member,
        start=member.offset,
        end=member.offset_data + size + len(padding(size)),
    )


class _Owners:
    """The owners of files, from dpkg's database in a tar.

    `packages` has the packages that list a path, which for a folder may be many. `sums` has the MD5 of a file
    by path and package.
    """

    def __init__(self, entries: Sequence[_Entry], tar: tarfile.TarFile) -> None:
        # Older packages list /lib/x for /usr/lib/x; /lib is a link.
        self._top = {
            entry.path: posixpath.normpath(f"/{entry.member.linkname}").lstrip("/")
            for entry in entries
            if entry.member.issym() and "/" not in entry.path
        }
        self.packages: dict[str, list[str]] = defaultdict(list)
        self.sums: dict[tuple[str, str], str] = {}
        diversions: list[str] = []
        for entry in entries:
            package, kind = _package(entry.path), entry.path.rpartition(".")[2]
            if package and kind == "list":
                for line in _lines(entry, tar):
                    self.packages[self._path(line)].append(package)
            elif package and kind == "md5sums":
                matches = (_SUM.fullmatch(line) for line in _lines(entry, tar))
                self.sums.update({(self._path(match[2]), package): match[1] for match in matches if match})
            elif entry.path == f"{_DPKG}/status":
                self._read_conffiles(_lines(entry, tar))
            elif entry.path == f"{_DPKG}/diversions":
                diversions = _lines(entry, tar)
        # A diversion has three lines: the old path, the new path, and the package that asked for it.
        for start in range(0, len(diversions) - 2, 3):
            self._divert(*diversions[start : start + 3])

    def know(self, path: str) -> bool:
        """Return whether a package states the content of a file."""
        return any((path, package) in self.sums for package in self.packages.get(path, ()))

    def part(self, path: str, md5: str, homes: Mapping[str, str]) -> str:
        """Return the part of a file: its package's, unless the file changed after dpkg unpacked it."""
        if package := _package(path):
            return homes.get(package, STATE)
        listed = self.packages.get(path, ())
        parts = {
            homes.get(package, STATE)
            for package in listed
            if self.sums.get((path, package), _NO_CONTENT) == md5
        }
        return parts.pop() if len(parts) == 1 else STATE

    def _path(self, stated: str) -> str:
        first, slash, rest = posixpath.normpath(f"/{stated}").lstrip("/").partition("/")
        return f"{self._top.get(first, first)}/{rest}" if slash else first

    def _read_conffiles(self, lines: Sequence[str]) -> None:
        package = ""
        for line in lines:
            if line.startswith("Package: "):
                package = line.removeprefix("Package: ")
            elif match := _CONFFILE.fullmatch(line):
                self.sums[self._path(match[1]), package] = match[2]

    def _divert(self, source: str, target: str, package: str) -> None:
        """Apply a diversion: the files of all packages but one are at the new path."""
        old, new = self._path(source), self._path(target)
        moved = [name for name in self.packages.get(old, ()) if name != package]
        for name in moved:
            self.packages[old].remove(name)
            self.packages[new].append(name)
            if md5 := self.sums.pop((old, name), ""):
                self.sums[new, name] = md5


def _places(
    entries: Sequence[_Entry], owners: _Owners, homes: Mapping[str, str], tar: BinaryIO
) -> Iterator[frozenset[str]]:
    """Yield the parts of each entry."""
    parts = _files(entries, owners, homes, tar)
    folders: dict[str, set[str]] = defaultdict(set)
    for path, part in parts.items():
        for folder in parents(path):
            folders[folder].add(part)
    for entry in entries:
        if not entry.member.isdir():
            continue
        # An empty folder goes to the parts of the packages that list it.
        mine = {homes.get(package, STATE) for package in owners.packages.get(entry.path, ())}
        for folder in (*parents(entry.path), entry.path) if mine else ():
            folders[folder] |= mine
    for entry in entries:
        if entry.member.isdir() and not folders[entry.path]:
            for folder in (*parents(entry.path), entry.path):
                folders[folder].add(STATE)
    for entry in entries:
        yield frozenset(folders[entry.path] if entry.member.isdir() else {parts[entry.path]})


def _files(
    entries: Sequence[_Entry], owners: _Owners, homes: Mapping[str, str], tar: BinaryIO
) -> dict[str, str]:
    """Return the part of each entry that is not a folder, by path."""
    parts: dict[str, str] = {}
    linked: dict[str, list[str]] = defaultdict(list)
    sums = _sums([entry for entry in entries if entry.member.isreg() and owners.know(entry.path)], tar)
    for entry in entries:
        if entry.member.isreg():
            sums.setdefault(entry.path, _UNKNOWN)
            parts[entry.path] = owners.part(entry.path, sums[entry.path], homes)
        elif entry.member.issym():
            sums[entry.path] = _NO_CONTENT
            parts[entry.path] = owners.part(entry.path, _NO_CONTENT, homes)
        elif entry.member.islnk():
            linked[_target(entry)].append(entry.path)
        elif not entry.member.isdir():
            parts[entry.path] = STATE
    for target, names in linked.items():
        # A hard link needs its target in the same layer, so all names of a file are in one part.
        if target not in parts:
            raise BuildError(f"the system's tar has no {target}, to which {names[0]} is a hard link")
        md5 = sums.get(target, _UNKNOWN)
        own = {parts[target], *(owners.part(name, md5, homes) for name in names)}
        parts.update(dict.fromkeys((target, *names), own.pop() if len(own) == 1 else STATE))
    for path in sums.keys() - linked.keys():
        # Bytecode depends only on its module, so it goes to the module's part.
        compiled = _COMPILED.fullmatch(path)
        if compiled and path not in owners.packages:
            parts[path] = parts.get(f"{compiled[1]}{compiled[2]}.py", STATE)
    return parts


def _package(path: str) -> str:
    """Return the package that a file of dpkg's database describes; "" for every other file."""
    match = _INFO.fullmatch(path)
    return match[1] if match else ""


def _lines(entry: _Entry, tar: tarfile.TarFile) -> list[str]:
    content = tar.extractfile(entry.member)
    return content.read().decode(errors="surrogateescape").splitlines() if content else []


def _sums(entries: Sequence[_Entry], tar: BinaryIO) -> dict[str, str]:
    """Return the MD5 of files by path, as dpkg has it; it finds changes by scripts and protects nothing."""
    workers = min(process.cores(), 8)
    with (
        mmap.mmap(tar.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
        ThreadPoolExecutor(workers) as pool,
    ):
        shares = [entries[first::workers] for first in range(workers)]
        parts = pool.map(lambda share: [(entry.path, _md5(entry, content)) for entry in share], shares)
        return dict(pair for part in parts for pair in part)


def _md5(entry: _Entry, tar: memoryview) -> str:
    start = entry.member.offset_data
    with tar[start : start + entry.member.size] as data:
        if len(data) < entry.member.size:
            raise BuildError("the system's tar broke off")
        return hashlib.md5(data, usedforsecurity=False).hexdigest()
