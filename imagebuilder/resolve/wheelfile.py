"""Inspect wheels on an index: choose the best file, find its size, read the requirements in its metadata."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import urllib3
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from imagebuilder.core import wheeltags
from imagebuilder.errors import FetchError
from imagebuilder.host.settings import local_path
from imagebuilder.host.site import redact
from imagebuilder.resolve.agreement import counts, environment
from imagebuilder.resolve.uv import File, Target

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 20
_PARTIAL = 206
# METADATA may contain a project's whole description; even a megabyte is unusual.
_LARGEST = 16 << 20
# zipfile reads the whole directory at once, in the size that the file's last record states.
_MOST_AT_ONCE = 32 << 20
_NUMBER = re.compile(r"[0-9]{1,18}")
# Errors of zipfile, its decompressors, packaging and HTTP for files that are missing or not wheels.
UNREADABLE = (
    OSError, EOFError, LookupError, ValueError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
    urllib3.exceptions.HTTPError,
)  # fmt: skip


def best(files: Iterable[File], target: Target) -> File | None:
    """Return the file that pip would install: the most specific tag, then the highest build number.

    Of several files with the same name (a folder and an index may both have it), the first counts.
    """
    order = wheeltags.order(target.python, target.glibc, target.machine)
    ranked = []
    for file in files:
        try:
            _, _, build, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue  # an index may list anything
        ranks = [order[str(tag)] for tag in tags if str(tag) in order]
        if ranks:
            ranked.append((min(ranks), [-(build[0] if build else 0)], file.name, file))
    return min(ranked, key=lambda row: row[:3])[3] if ranked else None


def measure(file: File, session: requests.Session) -> File:
    """Fill in what the index does not state: the size, and in rare cases the sha256.

    Raises:
        FetchError: the file cannot be fetched.

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
            f"{file.name} cannot be fetched: {_in_words(error)}", hint="check the network and the index"
        ) from error


def requires(file: File, session: requests.Session) -> tuple[Requirement, ...]:
    """Read a wheel's own requirements (Requires-Dist), without downloading all of it.

    Raises:
        FetchError: the file cannot be fetched, or is not a wheel.

    """
    path = local_path(file.url)
    try:
        if path is not None:
            text = metadata(path)
        else:
            # PEP 658: an index serves the metadata beside the file.
            served = _served(f"{file.url}.metadata", session)
            text = metadata(_RemoteFile(file.url, session)) if served is None else served
        return tuple(Metadata.from_email(text, validate=False).requires_dist or ())
    except UNREADABLE as error:
        raise FetchError(f"the metadata of {file.name} cannot be read: {_in_words(error)}") from error


def metadata(source: Path | io.RawIOBase) -> bytes:
    """Read the METADATA of a wheel's file; may raise the errors in `UNREADABLE`."""
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            folder, _, last = name.partition("/")
            if folder.endswith(".dist-info") and last == "METADATA":
                if archive.getinfo(name).file_size > _LARGEST:
                    raise ValueError("its METADATA is far too large")
                return archive.read(name)
    raise LookupError("there is no METADATA in it")


def demands(requirements: Iterable[Requirement], name: str, target: Target) -> tuple[Requirement, ...]:
    """Return the requirements on a package that apply to the target, or else those of extras."""
    variables = environment(target.python, target.architecture)
    named = [item for item in requirements if canonicalize_name(item.name) == name]

    plain = tuple(item for item in named if counts(item, variables))
    if plain:
        return plain
    return tuple(item for item in named if any(counts(item, variables, extra) for extra in _extras(item)))


def _extras(requirement: Requirement) -> list[str]:
    words = str(requirement.marker).replace("'", '"').split('"')
    return words[1::2]


def _in_words(error: Exception) -> str:
    from imagebuilder.host import (
        http,  # late: it loads requests, which commands that fetch nothing do not need
    )

    return redact(http.in_words(error))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remote_size(url: str, session: requests.Session) -> int:
    # A compressed reply would have another length.
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
    """Return what an index serves under this URL; None if it serves nothing there."""
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


class _RemoteFile(io.RawIOBase):
    """A remote file, read by HTTP ranges; supports what zipfile needs to read one member."""

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
        if end - self._position > _MOST_AT_ONCE:
            raise LookupError("its zip directory, or a file in it, is far too large")
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={self._position}-{end - 1}"}
        with self._session.get(self._url, headers=headers, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != _PARTIAL:
                # Not an OSError, which zipfile would report as a file that is not a zip.
                raise LookupError("the server does not give parts of a file")
            data = _bounded(answer, end - self._position)
            self._position += len(data)
            return data
