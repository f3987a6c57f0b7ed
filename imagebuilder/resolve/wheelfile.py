"""One wheel at its source: does it fit, how large is it, and what does its own metadata require."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import packaging.tags
import urllib3
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from imagebuilder.errors import FetchError
from imagebuilder.hostconfig import local_path
from imagebuilder.resolve.uv import File, Target
from imagebuilder.site import redact

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 20
_PARTIAL = 206
# METADATA holds a project's whole description, at times; a megabyte is much.
_LARGEST = 16 << 20
_NUMBER = re.compile(r"[0-9]{1,18}")
# What zipfile, its decompressors, packaging and HTTP raise for what is no wheel, or no longer there.
_UNREADABLE = (
    OSError, EOFError, LookupError, ValueError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
    urllib3.exceptions.HTTPError,
)  # fmt: skip
# Names of manylinux from before PEP 600, and the C library that each stands for.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def best(files: Iterable[File], target: Target) -> File | None:
    """Choose the file that pip would install: the most specific tag, then the highest build number."""
    order = _tag_order(target.python, target.glibc, target.machine)
    ranked = []
    for file in files:
        try:
            _, _, build, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue  # an index may list anything
        ranks = [order[str(tag)] for tag in tags if str(tag) in order]
        if ranks:
            ranked.append((min(ranks), [-(build[0] if build else 0)], file.name, file))
    return min(ranked)[-1] if ranked else None


def measure(file: File, session: requests.Session) -> File:
    """Fill in what the index did not tell: size, and in rare cases the sha256.

    Raises:
        FetchError: the file cannot be had.

    """
    if file.sha256 and file.size >= 0:
        return file
    path = local_path(file.url)
    try:
        if path is not None:
            sha256 = file.sha256 or _hash(path)
            return File(name=file.name, url=file.url, sha256=sha256, size=path.stat().st_size)
        if file.sha256:
            return File(
                name=file.name, url=file.url, sha256=file.sha256, size=_remote_size(file.url, session)
            )
        return _received(file, session)
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:  # that of requests is one, too
        raise FetchError(
            f"{file.name} cannot be had: {_in_words(error)}", hint="check the network and the index"
        ) from error


def requires(file: File, session: requests.Session) -> tuple[Requirement, ...]:
    """Read what a wheel itself requires (its Requires-Dist), without fetching all of it.

    Raises:
        FetchError: the file cannot be had, or is not a wheel.

    """
    path = local_path(file.url)
    try:
        if path is not None:
            text = _metadata_member(path)
        else:
            # PEP 658: an index serves the metadata beside the file.
            served = _served(f"{file.url}.metadata", session)
            text = _metadata_member(_RemoteFile(file.url, session)) if served is None else served
        return tuple(Metadata.from_email(text, validate=False).requires_dist or ())
    except _UNREADABLE as error:
        raise FetchError(f"the metadata of {file.name} cannot be read: {_in_words(error)}") from error


def demands(requirements: Iterable[Requirement], name: str, target: Target) -> tuple[Requirement, ...]:
    """Choose the requirements on one package that count on the target, those of extras included."""
    environment = {
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
        "sys_platform": "linux", "platform_system": "Linux", "platform_machine": target.machine,
        "python_version": target.python, "python_full_version": f"{target.python}.0",
        "implementation_version": f"{target.python}.0", "platform_release": "", "platform_version": "",
    }  # fmt: skip
    named = [item for item in requirements if canonicalize_name(item.name) == name]

    def holds(item: Requirement, extra: str) -> bool:
        try:
            return item.marker is None or item.marker.evaluate({**environment, "extra": extra})
        except ValueError:
            return False  # a comparison that has no meaning, as of a version with a word

    plain = tuple(item for item in named if holds(item, ""))
    if plain:
        return plain
    return tuple(item for item in named if any(holds(item, extra) for extra in _extras(item)))


def _extras(requirement: Requirement) -> list[str]:
    words = str(requirement.marker).replace("'", '"').split('"')
    return words[1::2]


@cache
def _tag_order(python: str, glibc: str, machine: str) -> dict[str, int]:
    major, minor = (int(part) for part in python.split("."))
    platforms: list[str] = []
    for level in range(int(glibc.split(".")[1]), 4, -1):
        platforms.append(f"manylinux_2_{level}_{machine}")
        if level in _LEGACY:
            platforms.append(f"{_LEGACY[level]}_{machine}")
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{major}{minor}"
    tags = [
        *packaging.tags.cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *packaging.tags.compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    ]
    return {str(tag): rank for rank, tag in reversed(list(enumerate(tags)))}


def _in_words(error: Exception) -> str:
    from imagebuilder import http  # late: it loads requests, which commands that fetch nothing do not need

    return redact(http.in_words(error))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remote_size(url: str, session: requests.Session) -> int:
    # Any other encoding than the bytes themselves would give another length.
    plain = {"Accept-Encoding": "identity"}
    answer = session.head(url, headers=plain, allow_redirects=True)
    length = answer.headers.get("Content-Length", "")
    if answer.ok and _NUMBER.fullmatch(length):
        return int(length)
    with session.get(url, headers={**plain, "Range": "bytes=0-0"}, stream=True) as part:
        part.raise_for_status()
        ranged = part.headers.get("Content-Range", "").rpartition("/")[2]
        for told in (ranged, part.headers.get("Content-Length", "")):
            if _NUMBER.fullmatch(told):
                return int(told)
    raise ValueError("the server does not say how large it is")


def _served(url: str, session: requests.Session) -> bytes | None:
    """Read what an index serves beside a file; None where it does not."""
    with session.get(url, headers={"Accept-Encoding": "identity"}, stream=True) as answer:
        if not answer.ok:
            return None
        return _bounded(answer, _LARGEST)


def _bounded(answer: requests.Response, limit: int) -> bytes:
    data = b""
    while len(data) <= limit and (piece := answer.raw.read(_CHUNK, decode_content=False)):
        data += piece
    if len(data) > limit:
        raise ValueError(f"the server gives more than {limit} bytes")
    return data


def _received(file: File, session: requests.Session) -> File:
    digest, size = hashlib.sha256(), 0
    with session.get(file.url, headers={"Accept-Encoding": "identity"}, stream=True) as answer:
        answer.raise_for_status()
        for chunk in answer.iter_content(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return File(name=file.name, url=file.url, sha256=digest.hexdigest(), size=size)


def _metadata_member(source: Path | io.RawIOBase) -> bytes:
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            folder, _, last = name.partition("/")
            if folder.endswith(".dist-info") and last == "METADATA":
                if archive.getinfo(name).file_size > _LARGEST:
                    raise ValueError("its METADATA is far too large")
                return archive.read(name)
    raise LookupError("there is no METADATA in it")


class _RemoteFile(io.RawIOBase):
    """A file behind HTTP ranges, as far as reading one member of a zip needs it."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url, self._session, self._position = url, session, 0
        self._size = _remote_size(url, session)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        if end <= self._position:
            return b""
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={self._position}-{end - 1}"}
        with self._session.get(self._url, headers=headers, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != _PARTIAL:
                # Not an OSError: zipfile would take that for a file that is no zip.
                raise LookupError("the server does not give parts of a file")
            data = _bounded(answer, end - self._position)
            self._position += len(data)
            return data
