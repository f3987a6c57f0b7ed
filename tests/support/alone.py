"""A network that holds one server on this host and nothing else, not even a resolver: a network namespace.

Unix sockets reach across namespaces. So one leads from there to here, with a TCP port at either end.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer, ThreadingUnixStreamServer

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def reaching(server: str, folder: Path) -> Iterator[list[str | Path]]:
    """Pass connections on until the block ends; gives the beginning of a command that runs in that network.

    Args:
        server: `host:port`; the command finds it under the same port of 127.0.0.1.
        folder: for the socket.

    """
    host, _, port = server.rpartition(":")
    path = folder / "socket"
    handler = _passing_on(lambda: socket.create_connection((host, int(port))))
    with ThreadingUnixStreamServer(str(path), handler) as here:
        here.daemon_threads = True
        threading.Thread(target=here.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield [
                "unshare",
                "--net",
                "env",
                f"PYTHONPATH={ROOT}",
                sys.executable,
                "-m",
                __name__,
                path,
                port,
            ]
        finally:
            here.shutdown()


def _passing_on(connect: Callable[[], socket.socket]) -> type[BaseRequestHandler]:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with connect() as far:
                back = threading.Thread(target=_copy, args=(far, self.request), daemon=True)
                back.start()
                _copy(self.request, far)
                back.join()

    return Handler


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 20):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _run(path: str, port: str, *words: str) -> int:
    """Run a command inside, with the port open."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def connect() -> socket.socket:
        far = socket.socket(socket.AF_UNIX)
        far.connect(path)
        return far

    with ThreadingTCPServer(("127.0.0.1", int(port)), _passing_on(connect)) as there:
        there.daemon_threads = True
        threading.Thread(target=there.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            return subprocess.run(words, check=False).returncode
        finally:
            there.shutdown()


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
