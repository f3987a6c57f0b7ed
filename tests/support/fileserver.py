"""A web server for tests: files by path, with the troubles that real servers make."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """Files and troubles; what was asked is in `seen`, as (method, path, headers).

    Attributes:
        files: path and content.
        refusals: path and the status codes to answer first, one a request.
        breaks: path and the byte counts after which to hang up, one a request.
        redirects: path and where it has gone.
        ranges: whether parts of a file are given.
        silent: paths that are never answered, until `release` is set.

    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, list[int]] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    silent: set[str] = field(default_factory=set)
    release: threading.Event = field(default_factory=threading.Event)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def asked(self, header: str) -> list[str]:
        """List the values of one header over all requests, empty where a request had none."""
        return [headers.get(header, "") for _, _, headers in self.seen]


@contextmanager
def serving() -> Iterator[FileServer]:
    """Start a server on 127.0.0.1, and end it."""
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, state)

        def do_HEAD(self) -> None:
            _answer(self, state)

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(request: BaseHTTPRequestHandler, state: FileServer) -> None:
    path = request.path.partition("?")[0]
    state.seen.append((request.command, path, dict(request.headers)))
    if path in state.silent:
        state.release.wait()
    if path in state.redirects:
        _head(request, 302, {"Location": state.redirects[path], "Content-Length": "0"})
        return
    refusals = state.refusals.get(path)
    if refusals or path not in state.files:
        _head(request, refusals.pop(0) if refusals else 404, {"Content-Length": "0"})
        return
    content = state.files[path]
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if wanted and state.ranges:
        start, last = int(wanted[1]), int(wanted[2] or len(content) - 1)
        if start >= len(content):
            _head(request, 416, {"Content-Length": "0"})
            return
        body = content[start : last + 1]
        status, headers = 206, {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(content)}"}
    else:
        body, status, headers = content, 200, {}
    kind = "text/html" if path.endswith("/") else "application/octet-stream"
    _head(request, status, {**headers, "Content-Type": kind, "Content-Length": str(len(body))})
    if request.command == "GET":
        breaks = state.breaks.get(path)
        if breaks:
            body = body[: breaks.pop(0)]
            request.close_connection = True
        with suppress(ConnectionError):  # whoever had enough hangs up
            request.wfile.write(body)


def _head(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
