"""Fetching locked files into the store: in parallel, resumed where they broke off, and checked."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import requests
import urllib3

from imagebuilder import http
from imagebuilder.errors import FetchError, Problem
from imagebuilder.hostconfig import local_path
from imagebuilder.site import Site, redact
from imagebuilder.store import Store, explained
from imagebuilder.yamlfile import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_CONNECTIONS = 6
_CHUNK = 1 << 20
# Attempts without a byte of progress before a file is given up, and the seconds of the first pause
# between them; each pause is twice the one before.
_ATTEMPTS = 4
_PAUSE = 0.5
# A server that says no means it; asked once more, because caches and mirrors have bad moments.
_REFUSALS = 2
_FAILURES = 3

_OK = 200
_PARTIAL = 206
_NOTHING_LEFT = 416
_NUMBER = re.compile(r"[0-9]{1,18}")
_REFUSED = frozenset({400, 401, 403, 404, 405, 407, 410, 451})


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file: its name for messages, where it may be (in this order), size in bytes, and hex sha256."""

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str


def fetch(
    downloads: Sequence[Download],
    store: Store,
    site: Site,
    advance: Callable[[str, int], None],
    finished: Callable[[str], None],
) -> None:
    """Put files into the store, at `store.download(sha256)`; those that are there are not fetched again.

    What has been received stays as a `.part` file when this is interrupted, and the next call goes on
    from there.

    Args:
        downloads: what to fetch, in the order to begin with.
        store: where to.
        site: proxies, CA and credentials.
        advance: called from any thread with a sha256 and the bytes received since the last call; a negative
            count takes back what was received in vain. An exception raised in it ends the whole.
        finished: called with a sha256 when the file is in its place.

    Raises:
        FetchError: files that could not be had, or are not the locked ones; names each.
        StoreError: the disk is full or not writable.

    """
    unique = {item.sha256: item for item in downloads}
    waiting: queue.SimpleQueue[Download] = queue.SimpleQueue()
    for item in unique.values():
        waiting.put(item)
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with site.session() as session:
        job = _Job(store=store, session=session, advance=advance, finished=finished, stop=threading.Event())
        # Daemons: a thread that waits for a silent server must not keep the program from ending.
        for number in range(min(_CONNECTIONS, len(unique))):
            threading.Thread(
                target=_work, args=(job, waiting, outcome), name=f"download-{number}", daemon=True
            ).start()
        problems: list[Problem] = []
        try:
            for _ in unique:
                error = outcome.get()
                if isinstance(error, FetchError):
                    problems += error.problems
                elif error:
                    raise error
                if len(problems) >= _FAILURES:
                    break  # this is no longer about single files
        finally:
            job.stop.set()
    if problems:
        raise FetchError.of(problems)


@dataclass(frozen=True, kw_only=True)
class _Job:
    store: Store
    session: requests.Session
    advance: Callable[[str, int], None]
    finished: Callable[[str], None]
    stop: threading.Event


class _FailedError(Exception):
    """An attempt came to nothing."""

    hint = ""


class _BrokenOffError(_FailedError):
    """A connection failed; another attempt may go on from where it ended."""

    hint = "check the network and the mirror; what has been received is kept, and the same command goes on"


class _RefusedError(_FailedError):
    """A server will not give the file."""

    hint = "name an index or mirror that has it in a file for --site; credentials go into ~/.netrc"


class _WrongBytesError(_FailedError):
    """What came is not the locked file."""

    hint = "the mirror, or a proxy on the way, holds another file; name another one in a file for --site"


class _StoppedError(Exception):
    """Somebody else ended the whole."""


def _work(
    job: _Job,
    waiting: queue.SimpleQueue[Download],
    outcome: queue.SimpleQueue[BaseException | None],
) -> None:
    while not job.stop.is_set():
        try:
            item = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            with job.store.exclusive(f"download {item.sha256}"):
                if not job.store.has_download(item.sha256, item.size):
                    _get(item, job)
            job.finished(item.sha256)
        except _StoppedError:
            return
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            outcome.put(error)
        else:
            outcome.put(None)


def _get(item: Download, job: _Job) -> None:
    """Fetch one file, with as many attempts as make sense."""
    place = job.store.download(item.sha256)
    with explained(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f"{item.sha256}.part")
    progress = _Progress(item, job.advance)
    urls = list(item.urls)
    failed: _FailedError = _RefusedError("no place is known that has it")
    failures: Counter[str] = Counter()
    idle, most = 0, _size(part)
    while urls and idle < _ATTEMPTS:
        url = urls.pop(0)
        try:
            _attempt(url, item, part, progress, job)
        except _FailedError as error:
            failed = error
        else:
            with explained(place):
                part.replace(place)
            return
        log.info("%s: %s", item.name, failed)
        if isinstance(failed, _BrokenOffError):
            urls.append(url)
        else:
            failures[url] += 1
            if failures[url] < _REFUSALS:
                urls.append(url)
        if isinstance(failed, _WrongBytesError):
            progress.set(0)
            part.unlink(missing_ok=True)
        # What brings bytes is worth going on with, however often it breaks off.
        idle = 0 if _size(part) > most else idle + 1
        most = max(most, _size(part))
        if urls and idle < _ATTEMPTS and job.stop.wait(_PAUSE * 2**idle):
            raise _StoppedError
    raise FetchError(f"{item.name} cannot be had: {failed}", hint=failed.hint)


def _attempt(url: str, item: Download, part: Path, progress: _Progress, job: _Job) -> None:
    """Receive what is missing of a file, and check the whole."""
    digest = hashlib.sha256()
    with _opened(part) as file:
        have = _replay(file, digest, job.stop)
        if have > item.size:
            have, digest = 0, hashlib.sha256()
        progress.set(have)
        if have < item.size:
            with _source(url, item, have, job.session) as (start, chunks):
                if start != have:  # the server gives no parts, so begin again
                    have, digest = start, hashlib.sha256()
                    progress.set(0)
                _rewind(file, have, part)
                for chunk in chunks:
                    if job.stop.is_set():
                        raise _StoppedError
                    have += len(chunk)
                    if have > item.size:
                        raise _WrongBytesError(f"wanted {item.size} bytes, got more from {redact(url)}")
                    digest.update(chunk)
                    with explained(part):
                        file.write(chunk)
                    progress.set(have)
    if have < item.size:
        raise _BrokenOffError(f"wanted {item.size} bytes, got {have} from {redact(url)}")
    if digest.hexdigest() != item.sha256:
        raise _WrongBytesError(f"wanted sha256 {item.sha256}, got {digest.hexdigest()} from {redact(url)}")


@contextmanager
def _source(
    url: str, item: Download, start: int, session: requests.Session
) -> Iterator[tuple[int, Iterable[bytes]]]:
    """Open a file at a position: the one that was granted (`start` or 0), and the bytes from there on."""
    path = local_path(url)
    if path is not None:
        try:
            with path.open("rb") as file:
                _check_length(path.stat().st_size, item, str(path))
                file.seek(start)
                yield start, iter(lambda: file.read(_CHUNK), b"")
        except FileNotFoundError:
            raise _RefusedError(f"{path} is not there") from None
        except PermissionError:
            raise _RefusedError(f"{path} cannot be read") from None
        return
    # Bytes as they are: a compressed answer has another length, and cannot be resumed.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        with session.get(url, headers=headers, stream=True) as answer:
            granted = _granted(answer, start, item, url)
            yield granted, answer.raw.stream(_CHUNK, decode_content=False)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _BrokenOffError(f"{http.in_words(error)} ({redact(url)})") from error


def _granted(answer: requests.Response, start: int, item: Download, url: str) -> int:
    """Read from which byte on a server answers."""
    status = f"{answer.status_code} {printable(answer.reason or '')} from {redact(url)}"
    if answer.status_code == _OK:
        length = answer.headers.get("Content-Length", "")
        if _NUMBER.fullmatch(length):
            _check_length(int(length), item, url)
        return 0
    if answer.status_code == _PARTIAL:
        unit, _, total = answer.headers.get("Content-Range", "").partition("/")
        if unit.startswith(f"bytes {start}-"):
            _check_length(int(total) if _NUMBER.fullmatch(total) else item.size, item, url)
            return start
    if answer.status_code == _NOTHING_LEFT:
        raise _WrongBytesError(f"wanted {item.size} bytes, got {start} and no more from {redact(url)}")
    if answer.status_code in _REFUSED:
        raise _RefusedError(status)
    raise _BrokenOffError(status)


def _check_length(length: int, item: Download, source: str) -> None:
    if length != item.size:
        raise _WrongBytesError(f"wanted {item.size} bytes, {redact(source)} has {length}")


class _Progress:
    """How much of a file is there, told to the caller as differences."""

    def __init__(self, item: Download, advance: Callable[[str, int], None]) -> None:
        self._sha256, self._advance, self._have = item.sha256, advance, 0

    def set(self, have: int) -> None:
        if have != self._have:
            self._advance(self._sha256, have - self._have)
            self._have = have


@contextmanager
def _opened(part: Path) -> Iterator[BinaryIO]:
    with explained(part):
        # A link there is nobody's doing but somebody's who wants another file of ours written.
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        file = os.fdopen(descriptor, "r+b")
    with file:
        yield file


def _replay(file: BinaryIO, digest: hashlib._Hash, stop: threading.Event) -> int:
    """Hash what an earlier attempt received."""
    have = 0
    while chunk := file.read(_CHUNK):
        if stop.is_set():
            raise _StoppedError
        digest.update(chunk)
        have += len(chunk)
    return have


def _rewind(file: BinaryIO, position: int, part: Path) -> None:
    with explained(part):
        file.seek(position)
        file.truncate()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
