"""A TCP port that leads to a Unix socket, so that an engine looks like one on another host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer


@contextlib.contextmanager
def forward(target: Path) -> Iterator[str]:
    """Pass connections on until the block ends; gives the address, as DOCKER_HOST takes it."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as far:
                far.connect(str(target))
                back = threading.Thread(target=_copy, args=(far, self.request))
                back.start()
                _copy(self.request, far)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # so that closing waits for them, and nothing is left open
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"tcp://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
