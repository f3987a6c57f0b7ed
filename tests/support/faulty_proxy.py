"""A proxy in front of a registry that breaks what passes: at random, with a seed, and counted by kind.

Which fault strikes is drawn by the seed, the kind of request and how many of that kind there were, not by the
clock or by threads: the same seed gives the same mixture of faults, whichever upload meets which.
"""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.servers import RegistryServer

# Kinds of faults, and how often each strikes, in percent of the requests that it can strike.
FAULTS: Mapping[str, float] = {
    "cut before": 3.0,  # the connection closes before the request reaches the registry
    "cut request": 8.0,  # part of the body reaches the registry, then both connections close
    "lost reply": 4.0,  # the registry has done it, and nobody hears of it
    "truncated reply": 4.0,  # half of the reply's body, then the end
    "status 500": 4.0,
    "status 503, Retry-After": 2.0,
    "status 429, Retry-After": 2.0,
    "delay": 5.0,
}
_DELAY = 0.3
_PIECE = 65_536
# What belongs to one connection, and not to the message: RFC 9110 section 7.6.1.
_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}
)


@dataclass
class FaultyProxy:
    """Its state: `counts` by kind of fault, `requests` in all, `host` to push to, `active` to pause it."""

    server: RegistryServer
    seed: int
    host: str = ""
    active: bool = True
    requests: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _seen: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, method: str, has_body: bool) -> tuple[str, random.Random]:
        """Choose the fault of a request, "" for none, and what decides its details."""
        with self._lock:
            self.requests += 1
            self._seen[method] += 1
            chance = random.Random(f"{self.seed} {method} {self._seen[method]}")  # noqa: S311  no secret
            if not self.active:
                return "", chance
            number, kinds = chance.uniform(0, 100), dict(FAULTS)
            if not has_body:
                del kinds["cut request"]
            for kind, share in kinds.items():
                number -= share
                if number < 0:
                    self.counts[kind] += 1
                    return kind, chance
            return "", chance


@contextmanager
def serve(server: RegistryServer, seed: int) -> Iterator[FaultyProxy]:
    """Stand before a registry on a port of its own; TLS with the registry's certificate where it has one."""
    state = FaultyProxy(server=server, seed=seed)
    handler = type("BoundHandler", (_Handler,), {"proxy": state})
    listener = _Listener(("127.0.0.1", 0), handler)
    if server.ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.folder / "server.crt", server.folder / "server.key")
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
    state.host = f"127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: cut connections are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
        """Stay quiet."""

    def do_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        fault, chance = self.proxy.draw(self.command, length > 0)
        if fault == "delay":
            time.sleep(chance.uniform(0, _DELAY))
        if fault == "cut before":
            self.close_connection = True
            return
        if fault.startswith("status"):
            self._refuse(int(fault.split()[1].rstrip(",")), length)
            return
        limit = chance.randrange(length) if fault == "cut request" else length
        try:
            reply, body = self._forward(length, limit)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # as a proxy does when the registry is being restarted
            return
        if fault in {"cut request", "lost reply"}:
            self.close_connection = True
            return
        self._answer(reply, body, truncated=fault == "truncated reply" and len(body) > 1)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_any  # noqa: N815 - the names are http.server's

    def _refuse(self, status: int, length: int) -> None:
        while length > 0:
            length -= len(self.rfile.read(min(length, _PIECE))) or length
        self.send_response(status)
        if status != 500:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _forward(self, length: int, limit: int) -> tuple[http.client.HTTPResponse, bytes]:
        """Send the request on, its body only up to a limit, and read the whole reply."""
        connection = _connection(self.proxy.server)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            if length or self.command in {"POST", "PUT", "PATCH"}:
                connection.putheader("Content-Length", str(length))
            connection.endheaders()
            sent = 0
            while sent < limit:
                piece = self.rfile.read(min(limit - sent, _PIECE))
                if not piece:
                    raise OSError("the client went away")
                connection.send(piece)
                sent += len(piece)
            if limit < length:
                raise OSError("cut here on purpose")
            reply = connection.getresponse()
            return reply, reply.read()
        finally:
            connection.close()

    def _answer(self, reply: http.client.HTTPResponse, body: bytes, *, truncated: bool) -> None:
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if truncated else body)
        if truncated:
            self.close_connection = True


def _connection(server: RegistryServer) -> http.client.HTTPConnection:
    if server.ca:
        context = ssl.create_default_context(cafile=str(server.ca))
        return http.client.HTTPSConnection(server.host, timeout=30, context=context)
    return http.client.HTTPConnection(server.host, timeout=30)
