"""A TCP port that leads to a Unix socket, so that an engine looks like one on another host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def forward(target: Path) -> Iterator[str]:
    """Pass connections on until the block ends; gives the address, as DOCKER_HOST takes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, target), daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def _accept(server: socket.socket, target: Path) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(target))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
