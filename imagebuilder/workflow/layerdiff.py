"""Compare two layers that should be equal: which files differ, and how."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, cast

from imagebuilder.core import tarstream
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import StoreError

_BLOCK = 1 << 20
# Limits for finding the first line that differs: size of a text file, and number of files of a layer.
_TEXT_LIMIT = 1 << 18
_TEXTS = 20
_LINE = 120  # characters of a line that are shown
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """What differs about one file.

    Attributes:
        path: in the image, without a slash at its beginning.
        what: the properties that differ, of `content`, `mode`, `owner`, `time`, `kind`, `target`,
            `attributes` and `order` (the position in the tar); or `missing` if only one layer has it.
        first, second: both values of each property, as text.
        line: number of the first line that differs, if both are text files; else 0.
        first_line, second_line: that line; empty after the end of the file.

    """

    path: str
    what: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]
    line: int = 0
    first_line: str = ""
    second_line: str = ""


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """The differences between two layers: files, or else `about` their tars or compression."""

    files: tuple[FileDifference, ...]
    about: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A member of a tar, as text; `content` is its hash."""

    kind: str
    mode: str
    owner: str
    time: str
    target: str
    content: str
    attributes: str


_FIELDS = ("kind", "mode", "owner", "time", "target", "content", "attributes")
_Name = tuple[str, int]  # a path and the number of the entry, because a tar may have a path several times


def compare(first: Path, second: Path) -> LayerDifference:
    """Compare two layers file by file.

    Args:
        first: a layer's blob: a tar, plain, gzip or zstd.
        second: the other one.

    Raises:
        StoreError: one of them cannot be read.

    """
    one, other = _entries(first), _entries(second)
    places = {name: place for place, name in enumerate(other)}
    found = []
    last = -1
    for name, entry in one.items():
        if name not in other:
            found.append(_missing(name, entry.kind, "nothing"))
            continue
        what = [field for field in _FIELDS if getattr(entry, field) != getattr(other[name], field)]
        before = [getattr(entry, field) for field in what]
        after = [getattr(other[name], field) for field in what]
        if places[name] < last:
            what.append("order")
            before.append("after what precedes it here")
            after.append("earlier")
        last = max(last, places[name])
        if what:
            found.append(
                FileDifference(path=name[0], what=tuple(what), first=tuple(before), second=tuple(after))
            )
    found += [_missing(name, "nothing", entry.kind) for name, entry in other.items() if name not in one]
    if not found:
        return LayerDifference(files=(), about=_about(first, second))
    texts = [each.path for each in found if "content" in each.what][:_TEXTS]
    lines = _lines(first, second, texts)
    return LayerDifference(files=tuple(lines.get(each.path, lambda it: it)(each) for each in found))


def _missing(name: _Name, first: str, second: str) -> FileDifference:
    return FileDifference(path=name[0], what=("missing",), first=(first,), second=(second,))


def _entries(path: Path) -> dict[_Name, _Entry]:
    found: dict[_Name, _Entry] = {}
    with _tar(path) as tar:
        for member in tar:
            name, number = _path(member), 0
            while (name, number) in found:
                number += 1
            device = f"{member.devmajor}:{member.devminor}" if member.isdev() and not member.isreg() else ""
            extra = {
                key: value for key, value in member.pax_headers.items() if key not in ("path", "linkpath")
            }
            found[name, number] = _Entry(
                kind=_KINDS.get(member.type, repr(member.type)) + (f" {device}" if device else ""),
                mode=f"{member.mode:04o}",
                owner=f"{member.uid}:{member.gid}"
                + (f" {member.uname}:{member.gname}" if member.uname else ""),
                time=str(member.mtime),
                target=printable(member.linkname),
                content=_hash(tar, member),
                attributes=printable(" ".join(f"{key}={value}" for key, value in sorted(extra.items()))),
            )
    return found


def _hash(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if not member.isreg():
        return ""
    file = cast("IO[bytes]", tar.extractfile(member))
    return f"{member.size} bytes, sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"  # type: ignore[arg-type]


def _path(member: tarfile.TarInfo) -> str:
    return printable(member.name.removeprefix("./"))


@contextmanager
def _tar(path: Path) -> Iterator[tarfile.TarFile]:
    with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as tar:
        yield tar


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    try:
        with tarstream.open_layer(path) as stream:
            yield stream
    except tarstream.errors() as error:
        raise StoreError(
            f"a layer cannot be read for the comparison: {error}", where=str(path), hint="build it again"
        ) from error


def _about(first: Path, second: Path) -> str:
    """Describe how two layers with the same files differ."""
    with _unpacked(first) as one, _unpacked(second) as other:
        place = 0
        while True:
            left, right = one.read(_BLOCK), other.read(_BLOCK)
            if left != right:
                pairs = enumerate(zip_longest(left, right))
                place += next(number for number, (a, b) in pairs if a != b)
                return f"the same files, but the tars differ at byte {place}, in a header or in padding"
            if not left:
                return "the same tar, compressed to other bytes"
            place += len(left)


class _Line:
    """Return the first line that differs between two texts."""

    def __init__(self, first: str, second: str) -> None:
        pairs = zip_longest(first.splitlines(), second.splitlines(), fillvalue="")
        numbered = ((number, a, b) for number, (a, b) in enumerate(pairs, 1) if a != b)
        self.number, self.first, self.second = next(numbered, (0, "", ""))

    def __call__(self, found: FileDifference) -> FileDifference:
        return FileDifference(
            path=found.path,
            what=found.what,
            first=found.first,
            second=found.second,
            line=self.number,
            first_line=printable(self.first)[:_LINE],
            second_line=printable(self.second)[:_LINE],
        )


def _lines(first: Path, second: Path, paths: Collection[str]) -> dict[str, _Line]:
    """Find the first line that differs of each file that is a short text in both layers."""
    one, other = (_texts(path, paths) for path in (first, second))
    return {path: _Line(one[path], other[path]) for path in one if path in other}


def _texts(layer: Path, paths: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if not paths:
        return found
    with _tar(layer) as tar:
        for member in tar:
            # Files that are not world-readable in the image, such as a baked key, are not shown.
            public = member.isreg() and member.mode & 0o004
            if public and member.size <= _TEXT_LIMIT and _path(member) in paths:
                data = cast("IO[bytes]", tar.extractfile(member)).read()
                text = data.decode(errors="replace")
                if b"\0" not in data and "�" not in text:
                    found[_path(member)] = text
    return found
