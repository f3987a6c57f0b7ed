"""A read-only registry with one image, on loopback, from which the engine on this host pulls.

The engine asks only for the layers that it lacks, and the kernel sends them directly from the store's files.
A random word in the repository's name keeps other users of this host from guessing it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.store import ImageRecord, Store

log = logging.getLogger(__name__)

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_PIECE = 4 * 1024 * 1024
# The first byte of a TLS handshake (RFC 8446, section 5.1): engines try TLS before plain HTTP.
_TLS_GREETING = b"\x16"
_IDLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class _File:
    path: Path
    size: int
    media_type: str
    digest: str


class Endpoint:
    """The server while it runs.

    Attributes:
        repository: `127.0.0.1:port/word/name`, to pull from.
        tag: the image's only tag.
        requests: the number of requests for the image.
        served: the bytes of layers and config that were sent.

    """

    def __init__(self, image: ImageRecord, store: Store, advance: Advance) -> None:
        """Choose a port and a word; requests are answered only in `serve`."""
        self.tag = image.tag
        self.requests = 0
        self.served = 0
        self._advance = advance
        self._lock = threading.Lock()
        path = f"{secrets.token_hex(16)}/{image.name}"
        self._files = _files(image, store, f"/v2/{path}")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.repository = f"127.0.0.1:{self.server.server_port}/{path}"

    def find(self, path: str) -> _File | None:
        """Return the file at a URL's path, and count the request."""
        file = self._files.get(path)
        with self._lock:
            self.requests += file is not None
        return file

    def count(self, size: int) -> None:
        """Add sent bytes to the count."""
        with self._lock:
            self.served += size
        self._advance(size)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class BoundHandler(_Handler):
            def __init__(self, *args: Any) -> None:
                self.endpoint = endpoint
                super().__init__(*args)

        return BoundHandler


@contextlib.contextmanager
def serve(image: ImageRecord, store: Store, advance: Advance = no_advance) -> Iterator[Endpoint]:
    """Serve one image until the block ends."""
    endpoint = Endpoint(image, store, advance)
    thread = threading.Thread(
        target=endpoint.server.serve_forever, kwargs={"poll_interval": 0.05}, name="endpoint", daemon=True
    )
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        endpoint.server.server_close()
        thread.join()


def _files(image: ImageRecord, store: Store, prefix: str) -> dict[str, _File]:
    """Return the files by URL path; the server answers 404 for all other paths."""
    place = store.blob(image.manifest)
    data = place.read_bytes()
    content = json.loads(data)
    manifest = _File(path=place, size=len(data), media_type=content["mediaType"], digest=image.manifest)
    files = {
        f"{prefix}/blobs/{part['digest']}": _File(
            path=store.blob(part["digest"]),
            size=part["size"],
            media_type="application/octet-stream",
            digest=part["digest"],
        )
        for part in (content["config"], *content["layers"])
    }
    return {
        **files,
        f"{prefix}/manifests/{image.tag}": manifest,
        f"{prefix}/manifests/{image.manifest}": manifest,
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "imagebuilder"
    sys_version = ""
    timeout = _IDLE_SECONDS
    endpoint: Endpoint

    def handle_one_request(self) -> None:
        # Go's HTTP client recognises plain HTTP by the first bytes of this answer. Without an answer both
        # sides would wait, because a TLS handshake may have no line feed, which ends a request line.
        with contextlib.suppress(OSError):
            if self.rfile.peek(1)[:1] == _TLS_GREETING:  # type: ignore[attr-defined]  # a BufferedReader
                self.wfile.write(b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n")
                self.close_connection = True
                return
            super().handle_one_request()
            return
        # The engine closes the connection if it already has the layer.
        self.close_connection = True

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
        log.debug("endpoint: " + format, *args)  # noqa: G003 - the format comes with its own arguments

    def _answer(self, *, with_body: bool) -> None:
        if self.path == "/v2/":
            self._head(HTTPStatus.OK, {"Content-Length": "2", "Content-Type": "application/json"})
            if with_body:
                self.wfile.write(b"{}")
            return
        entry = self.endpoint.find(self.path)
        if entry is None:
            self._head(HTTPStatus.NOT_FOUND, {"Content-Length": "0"})
            return
        try:
            with entry.path.open("rb") as file:
                self._send(file, entry, with_body=with_body)
        except FileNotFoundError:
            log.warning("%s vanished from the store", entry.digest)
            self._head(HTTPStatus.NOT_FOUND, {"Content-Length": "0"})

    def _send(self, file: Any, entry: _File, *, with_body: bool) -> None:
        headers = {
            "Content-Type": entry.media_type,
            "Docker-Content-Digest": entry.digest,
            "ETag": f'"{entry.digest}"',
            "Accept-Ranges": "bytes",
        }
        start, end, status = 0, entry.size, HTTPStatus.OK
        if asked := _RANGE.fullmatch(self.headers.get("Range", "")):
            start = int(asked[1])
            end = min(int(asked[2]) + 1, entry.size) if asked[2] else entry.size
            if start >= end:
                outside = {"Content-Range": f"bytes */{entry.size}", "Content-Length": "0"}
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, outside)
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size}"
            status = HTTPStatus.PARTIAL_CONTENT
        self._head(status, {**headers, "Content-Length": str(end - start)})
        while with_body and start < end:
            sent = self.connection.sendfile(file, start, min(_PIECE, end - start))
            if not sent:
                # The file is shorter than the manifest says; the engine notices the missing bytes.
                self.close_connection = True
                return
            start += sent
            self.endpoint.count(sent)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
