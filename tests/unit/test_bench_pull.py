"""The bench of the pulling side: its link counts and limits, and its page says what was measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import requests

from bench.pull.changed import changed_files
from bench.pull.link import link
from bench.pull.reads import Reads
from bench.pull.table import page
from imagebuilder.store import Store
from tests.support.wheels import dice, make_wheel, splice

SIZE = 2_000_000


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nConnection: close\r\n\r\n".encode()
            self.request.sendall(head + bytes(SIZE))

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.parametrize(("rate", "least"), [(None, 0.0), (4_000_000.0, 0.95)])
def test_a_link_counts_and_limits_all_connections_together(
    server: str, rate: float | None, least: float
) -> None:
    with link(server, rate) as way:
        started = time.monotonic()
        threads = [
            threading.Thread(target=requests.get, args=(f"http://{way.host}/",), kwargs={"timeout": 30})
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started >= least
        assert 2 * SIZE < way.received < 2 * SIZE + 1000


def test_changed_files_are_those_that_no_layer_of_the_image_before_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stays, new = dice(1).randbytes(50_000), dice(2).randbytes(30_000)
    made = []
    for name, files in (("one", {"a/s.so": stays}), ("two", {"a/moved.so": stays, "a/new.so": new})):
        (tmp_path / name).mkdir()
        made.append(store.blob(splice([make_wheel(tmp_path / name, files)], store).digest))
    (tmp_path / "config").write_bytes(b"{}")
    changed, tables = changed_files(made[:1], [made[1], tmp_path / "config"])
    # The new file, what the installer writes (RECORD and others), and the config.
    assert 30_000 < changed < 32_000
    assert 0 < tables < 2_000


def test_the_page_has_every_figure_beside_plain_s() -> None:
    figures = {"r": {"first pull, s": {"plain": 100.0, "zstd": 42.0}, "only ours, s": {"zstd": 1.0}}}
    reads = {"r": Reads(files=10, size=2_000_000, read=(("opt/a.so", 500_000, 1_000_000),))}
    text = page(figures, reads, "python -m bench.pull r", {"processors": "2 cores"})
    assert "| first pull, s | 100.0 | 42.0 (0.420) |" in text
    assert "| only ours, s | - | 1.0 |" in text
    assert "Of 10 files with 2 MB, the first step reads something of 1: 0 MB, 25.0%." in text
    assert "| opt/a.so | 0.5 MB | 1.0 MB |" in text
