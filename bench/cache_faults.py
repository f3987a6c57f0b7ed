"""A cache in a real registry that fails: what a build, a push and a filling come to. For `make soak`.

Prints a table, and ends with 1 where a build gave another digest, or nobody was told what happened.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests

from imagebuilder.core import process
from imagebuilder.errors import ImagebuilderError
from imagebuilder.lock.model import Lock
from imagebuilder.registry.blob import Blob
from imagebuilder.registry.cache import require_here
from imagebuilder.store import ImageRecord
from tests.support.cachehosts import PLACE, Host, lock_of
from tests.support.pushing import push
from tests.support.servers import RegistryServer, registry_server
from tests.support.wheels import dice, locked, make_wheel

_WHEELS, _WHEEL_BYTES, _HOSTS = 12, 4_000_000, 6
_PACE = 100_000  # bytes a second, of the slow cache
_CAPTION = """\
# A cache that fails

Made by `python -m bench.cache_faults` (`make soak`), with a real registry. The image has {wheels}
layers of a wheel of {size} MB each, and every host begins with an empty store that has the wheels. A
build fetches the bytes of the layers, as for `--load`, unless the row says that they are left there.
Each build must give the digest of one without a cache.

| the cache | what is done | outcome | s |
| --- | --- | --- | --: |
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; `wrong` says what should not have happened."""

    cache: str
    what: str
    outcome: str
    seconds: float
    wrong: str = ""


class World:
    """A registry whose cache one host has filled, and what the others begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "wheels").mkdir()
        paths = [
            make_wheel(folder / "wheels", {f"p{n}/data.bin": dice(n).randbytes(_WHEEL_BYTES)}, name=f"p{n}")
            for n in range(_WHEELS)
        ]
        self.wheels = {locked(path).sha256: path for path in paths}
        self.plain = lock_of(self.wheels)
        maker = self.host("maker", "127.0.0.1:1")
        self.digest = maker.build(self.plain).image.manifest
        self.lock: Lock = maker.learn(self.plain)
        self._numbers = iter(range(1000))

    def host(self, name: str, registry: str) -> Host:
        """Return a host with an empty store that has the wheels."""
        host = Host(self.folder / name, registry, self.wheels)
        host.has(self.plain)
        return host

    def fresh(self, registry: str) -> Host:
        return self.host(f"host{next(self._numbers)}", registry)

    @contextmanager
    def registry(
        self, *, filled: bool = True, extra: dict[str, object] | None = None
    ) -> Iterator[RegistryServer]:
        """Start a registry, whose cache has everything if `filled`."""
        folder = self.folder / f"registry{next(self._numbers)}"
        folder.mkdir()
        with registry_server(folder) as server:
            if filled:
                host = self.fresh(server.host)
                host.build(self.lock)
                host.fill(self.lock)
            if extra:
                server.kill()
                config = json.loads((folder / "config.yml").read_text())
                config["storage"].update(extra)
                (folder / "config.yml").write_text(json.dumps(config))
                server.start()
            yield server

    def build(self, host: Host, cache: str, *, whole: bool = True) -> Row:
        """Build, and say what the host was told."""
        began = time.monotonic()
        built = host.build(self.lock, whole=whole)
        seconds = time.monotonic() - began
        said = [line for line in host.said.getvalue().splitlines() if "the cache" in line]
        how = f"{built.made} layers made, {built.reused} fetched, {built.away} left there"
        told = f"; warned: {_tail(said[-1], host.registry)}" if said and cache != "none" else ""
        wrong = "" if built.image.manifest == self.digest else f"the digest is {built.image.manifest}"
        return Row(
            cache=cache, what="build", outcome=f"same digest; {how}{told}", seconds=seconds, wrong=wrong
        )


def _tail(line: str, registry: str) -> str:
    told = line.partition(f"{registry}/{PLACE}")[2].lstrip(": ") or line
    return re.sub(r"[0-9a-f]{58}(?=[0-9a-f]{6})|127\.0\.0\.1:[0-9]+", "…", told)


def whole(world: World) -> Iterator[Row]:
    with world.registry() as server:
        yield world.build(world.fresh("127.0.0.1:1"), "none")
        yield world.build(world.fresh(server.host), "whole", whole=False)
        yield world.build(world.fresh(server.host), "whole")


def down(world: World) -> Iterator[Row]:
    with world.registry() as server:
        server.kill()
        yield world.build(world.fresh(server.host), "does not answer")


def slow(world: World) -> Iterator[Row]:
    with world.registry() as server, relay(server.host) as host:
        yield world.build(world.fresh(host), f"sends {_PACE // 1000} kB a second")


def wrong_bytes(world: World) -> Iterator[Row]:
    with world.registry() as server:
        for layer in world.lock.layers[:3]:
            place = server.folder / "data/docker/registry/v2/blobs/sha256"
            name = layer.digest.removeprefix("sha256:")
            data = place / name[:2] / name / "data"
            data.write_bytes(dice(9).randbytes(data.stat().st_size))
        yield world.build(world.fresh(server.host), "3 layers have other bytes")


def collected(world: World) -> Iterator[Row]:
    """Clean up between the build, which asked for the layers, and the push, which needs them."""
    with world.registry() as server:
        host = world.fresh(server.host)
        built = host.build(world.lock)
        reply = requests.get(f"{server.url}/v2/{PLACE}/tags/list", timeout=60).json()
        for tag in reply["tags"]:
            kinds = "application/vnd.oci.image.manifest.v1+json"
            place = f"{server.url}/v2/{PLACE}/manifests/"
            found = requests.head(place + tag, headers={"Accept": kinds}, timeout=60)
            requests.delete(place + found.headers["Docker-Content-Digest"], timeout=60).raise_for_status()
        config = server.folder / "config.yml"
        server.kill()
        process.run(["docker-registry", "garbage-collect", config], timeout=300)
        server.start()
        began = time.monotonic()
        outcome = "pushed"
        try:
            push(
                built.image,
                host.store,
                f"{server.host}/team/app:one",
                bring=partial(_bring, host, built.image),
            )
        except ImagebuilderError as error:
            outcome = f"exit code {error.exit_code}: {error.problems[0].message}; {error.problems[0].hint}"
        seconds = time.monotonic() - began
        cache = "cleaned up after the build"
        yield Row(
            cache=cache, what="push", outcome=outcome, seconds=seconds, wrong=_unless(outcome != "pushed")
        )
        yield world.build(host, cache)


def _bring(host: Host, image: ImageRecord, blob: Blob) -> None:
    """Do what the verb does for a layer that the registry cannot link."""
    layers = [layer.record for layer in image.layers if layer.record.digest == blob.digest]
    require_here(layers, image.name, host.store, host.site, host.progress)


def read_only(world: World) -> Iterator[Row]:
    with world.registry(filled=False, extra={"maintenance": {"readonly": {"enabled": True}}}) as server:
        yield filling(world, server.host, "read-only")


def full(world: World) -> Iterator[Row]:
    with world.registry(filled=False) as server:
        data = server.folder / "data"
        data.mkdir(exist_ok=True)
        size = _WHEELS * _WHEEL_BYTES // 2
        process.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", data], timeout=60)
        try:
            yield filling(world, server.host, f"has room for {size // 1_000_000} MB")
        finally:
            server.kill()
            process.run(["umount", data], timeout=60)


def filling(world: World, registry: str, cache: str) -> Row:
    """Build, and fill a cache that refuses."""
    host = world.fresh(registry)
    host.build(world.lock)
    began = time.monotonic()
    outcome = "filled"
    try:
        host.fill(world.lock)
    except ImagebuilderError as error:
        outcome = f"the build stays; warned: {error.problems[0].message}"
    seconds = time.monotonic() - began
    return Row(cache=cache, what="fill", outcome=outcome, seconds=seconds, wrong=_unless(outcome != "filled"))


def at_once(world: World) -> Iterator[Row]:
    with world.registry(filled=False) as server:
        hosts = [world.fresh(server.host) for _ in range(_HOSTS)]
        for host in hosts:
            host.build(world.lock)
        began = time.monotonic()
        with ThreadPoolExecutor(_HOSTS) as pool:
            done = list(pool.map(lambda host: host.fill(world.lock), hosts))
        seconds = time.monotonic() - began
        kept = {item.kept for item in done}
        sent = sum(item.bytes for item in done)
        all_of_it = sum(layer.size for layer in world.lock.layers) + sum(w.size for w in world.lock.wheels)
        outcome = f"all see the same {max(kept)} blobs; {sent / all_of_it:.2f} times their bytes sent"
        wrong = _unless(kept == {2 * _WHEELS})
        yield Row(
            cache="empty", what=f"{_HOSTS} hosts fill it", outcome=outcome, seconds=seconds, wrong=wrong
        )
        yield world.build(world.fresh(server.host), "filled by them", whole=False)


def _unless(condition: bool) -> str:
    return "" if condition else "not as it should be"


@contextmanager
def relay(target: str) -> Iterator[str]:
    """Pass requests on, and answers at `_PACE` bytes a second together; yields the address."""
    guard = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = requests.request(self.command, f"http://{target}{self.path}", stream=True, timeout=60)
            self.send_response(answer.status_code)
            for key in ("Content-Length", "Content-Type", "Docker-Content-Digest"):
                if key in answer.headers:
                    self.send_header(key, answer.headers[key])
            self.end_headers()
            with suppress(OSError):
                for chunk in answer.iter_content(_PACE // 20) if self.command == "GET" else ():
                    with guard:
                        time.sleep(len(chunk) / _PACE)
                    self.wfile.write(chunk)

        do_HEAD = do_GET  # noqa: N815  (http.server's name)

        def log_message(self, *_words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


FAULTS: tuple[Callable[[World], Iterator[Row]], ...] = (
    whole, down, slow, wrong_bytes, collected, read_only, full, at_once,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="cache-faults-") as name:
        world = World(Path(name))
        for fault in FAULTS:
            rows += fault(world)
            print(rows[-1], file=sys.stderr)
    lines = [f"| {row.cache} | {row.what} | {row.outcome} | {row.seconds:.1f} |" for row in rows]
    caption = _CAPTION.format(wheels=_WHEELS, size=_WHEEL_BYTES // 1_000_000)
    table = caption + "\n".join(lines) + "\n"
    print(table)
    if arguments.out:
        arguments.out.write_text(table, encoding="utf-8")
    wrong = [f"{row.cache}, {row.what}: {row.wrong}" for row in rows if row.wrong]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
