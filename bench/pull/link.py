"""A link to a registry that counts what comes through it, and may be slow: TCP, passed on by this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer

GIGABIT = 125_000_000.0
_PIECE = 1 << 18


class Link:
    """The link of one node.

    Attributes:
        host: what the node calls the registry.
        received: bytes that the registry has sent through it, with the headers of HTTP.

    """

    def __init__(self, rate: float | None) -> None:
        """Take a rate in bytes a second for all connections together; None for no limit."""
        self.host = ""
        self.received = 0
        self._rate = rate
        self._free = 0.0
        self._guard = threading.Lock()

    def _count(self, size: int) -> None:
        """Count bytes, and wait until the link could have carried them."""
        with self._guard:
            self.received += size
            if self._rate is None:
                return
            self._free = max(self._free, time.monotonic()) + size / self._rate
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)

    def down(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what the registry sends."""
        buffer = memoryview(bytearray(_PIECE))
        with contextlib.suppress(OSError):
            while size := source.recv_into(buffer):
                self._count(size)
                sink.sendall(buffer[:size])
        _shut(sink)


def _up(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    _shut(sink)


def _shut(sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def link(registry: str, rate: float | None) -> Iterator[Link]:
    """Open a link to a registry, `host:port`, until the block ends."""
    made = Link(rate)
    host, _, port = registry.rpartition(":")

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as far:
                asking = threading.Thread(target=_up, args=(self.request, far), daemon=True)
                asking.start()
                made.down(far, self.request)

    class Server(ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        made.host = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield made
        finally:
            server.shutdown()
