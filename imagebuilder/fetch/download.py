"""Downloads locked files into the store: in parallel, resumed after an interruption, and checked."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import requests
import urllib3

from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import FetchError, Problem
from imagebuilder.host import http
from imagebuilder.host.settings import local_path
from imagebuilder.host.site import Site, redact
from imagebuilder.store import Store
from imagebuilder.store.partial import (
    BrokenOffError,
    FailedError,
    PartialFile,
    StoppedError,
    WrongBytesError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_CONNECTIONS = 6
_CHUNK = 1 << 20
# A file is given up after this many attempts without progress, or when an attempt fails this many seconds
# after the first failure. The first pause between attempts is _PAUSE seconds.
_ATTEMPTS = 8
_PAUSE = 0.25
_SECONDS = 300.0
# A refusal is usually final. It is tried once more, because caches and mirrors have short failures.
_REFUSALS = 2
_FAILURES = 3

_OK = 200
_PARTIAL = 206
_NOTHING_LEFT = 416
_NUMBER = re.compile(r"[0-9]{1,18}")
_REFUSED = frozenset({400, 401, 403, 404, 405, 407, 410, 451})


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file.

    Attributes:
        name: for messages.
        urls: where it may be, to try in this order.
        size: in bytes.
        sha256: in hex.
        others: finds more URLs, once all of `urls` have refused it.
        missing: makes the error from the last reason, where these do not have it either.

    """

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str
    others: Callable[[], tuple[str, ...]] | None = None
    missing: Callable[[str], FetchError] | None = None


def fetch(
    downloads: Sequence[Download],
    store: Store,
    site: Site,
    advance: Callable[[str, int], None],
    finished: Callable[[str], None],
) -> None:
    """Download files to `store.download(sha256)`; files that are already there are skipped.

    If a download is interrupted, its bytes stay in a `.part` file, and the next call continues from there.

    Args:
        downloads: the files, in the order in which downloads begin.
        store: the files are written to it.
        site: proxies, CA and credentials.
        advance: called from any thread with a sha256 and the bytes received since the last call; a negative
            count takes back bytes that turned out to be useless. An exception raised in it ends all
            downloads.
        finished: called with a sha256 when the file is in the store.

    Raises:
        FetchError: files that could not be fetched, or are not the locked ones; names each.
        StoreError: the disk is full or not writable.

    """
    unique = {item.sha256: item for item in downloads}
    waiting: queue.SimpleQueue[Download] = queue.SimpleQueue()
    for item in unique.values():
        waiting.put(item)
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with site.session(retries=False) as session:
        job = _Job(store=store, session=session, advance=advance, finished=finished, stop=threading.Event())
        # Daemon threads, because a thread that waits for a silent server must not keep the program alive.
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
                    break  # the cause is not a single file
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


class _RefusedError(FailedError):
    """A server refused to send the file."""


_HINTS = {
    BrokenOffError: "check the network and the mirror; "
    "the same command continues where the download broke off",
    _RefusedError: "name an index or mirror that has it in a file for --site; credentials go into ~/.netrc",
    WrongBytesError: "the mirror or a proxy has another file of this name; "
    "name another mirror in a file for --site",
}


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
        except StoppedError:
            return
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            outcome.put(error)
        else:
            outcome.put(None)


def _get(item: Download, job: _Job) -> None:
    """Download one file; try again while that can help."""
    file = PartialFile(
        job.store.download(item.sha256),
        size=item.size,
        sha256=item.sha256,
        advance=lambda count: job.advance(item.sha256, count),
        stop=job.stop,
    )
    try:
        _try(item, item.urls, file, job)
    except FailedError as error:
        failed = error
    else:
        return
    if not isinstance(failed, BrokenOffError) and item.others and (urls := item.others()):
        try:
            _try(item, urls, file, job)
        except FailedError as error:
            failed = error
        else:
            return
    if item.missing and isinstance(failed, _RefusedError):
        raise item.missing(str(failed))
    raise FetchError(f"{item.name} cannot be fetched: {failed}", hint=_HINTS[type(failed)])


def _try(item: Download, places: Sequence[str], file: PartialFile, job: _Job) -> None:
    """Download one file from one of these URLs; try again while that can help.

    Raises:
        FailedError: the last reason, and after how many attempts.

    """
    urls = list(places)
    failed: FailedError = _RefusedError("no URL is known for it")
    failures: Counter[str] = Counter()
    budget = Budget(attempts=_ATTEMPTS, seconds=_SECONDS, pause=_PAUSE)
    while urls:
        url = urls.pop(0)
        try:
            file.attempt(partial(_source, url, item, job.session), redact(url))
        except FailedError as error:
            failed = error
        else:
            return
        log.info("%s: %s", item.name, failed)
        if isinstance(failed, BrokenOffError):
            urls.append(url)
        else:
            failures[url] += 1
            if failures[url] < _REFUSALS:
                urls.append(url)
        if file.progressed():
            budget.progressed()
        pause = budget.spend()
        if pause is None:
            break
        if urls and job.stop.wait(pause):
            raise StoppedError
    raise type(failed)(f"{failed}; gave up after {budget}")


@contextmanager
def _source(
    url: str, item: Download, session: requests.Session, start: int
) -> Iterator[tuple[int, Iterable[bytes]]]:
    """Open a file at an offset; yields the offset of the answer (`start` or 0), and the bytes from there."""
    path = local_path(url)
    if path is not None:
        try:
            with path.open("rb") as file:
                _check_length(path.stat().st_size, item, str(path))
                file.seek(start)
                yield start, iter(lambda: file.read(_CHUNK), b"")
        except FileNotFoundError:
            raise _RefusedError(f"{path} does not exist") from None
        except PermissionError:
            raise _RefusedError(f"{path} cannot be read") from None
        return
    # Ask for uncompressed bytes: a compressed answer has another length and cannot be resumed.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        with session.get(url, headers=headers, stream=True) as answer:
            granted = _granted(answer, start, item, url)
            yield granted, answer.raw.stream(_CHUNK, decode_content=False)
    except requests.exceptions.InvalidURL as error:
        raise _RefusedError(f"{http.in_words(error)} ({redact(url)})") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise BrokenOffError(f"{http.in_words(error)} ({redact(url)})") from error


def _granted(answer: requests.Response, start: int, item: Download, url: str) -> int:
    """Return the offset at which a server's answer begins."""
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
        raise WrongBytesError(f"wanted {item.size} bytes, got {start} and no more from {redact(url)}")
    if answer.status_code in _REFUSED:
        raise _RefusedError(status)
    raise BrokenOffError(status)


def _check_length(length: int, item: Download, source: str) -> None:
    if length != item.size:
        raise WrongBytesError(f"wanted {item.size} bytes, {redact(source)} has {length}")
