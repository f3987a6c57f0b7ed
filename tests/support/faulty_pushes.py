"""Many pushes through a proxy that breaks things, to a registry that is killed now and then; all verified.

A handful of these is a test; two hundred are `make soak`, which prints the table.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import requests

from imagebuilder.core.process import run
from imagebuilder.image import layout
from imagebuilder.registry import Options
from imagebuilder.registry.credentials import Credentials
from imagebuilder.registry.upload import PushResult
from imagebuilder.store import ImageRecord, Store
from tests.support import faulty_proxy
from tests.support.images import noise, put_image
from tests.support.pushing import push
from tests.support.servers import PASSWORD, USER, RegistryServer, registry_server

# Every so many pushes the registry is killed while layers travel, and started again at once.
_KILL_EVERY = 8
_LARGEST = 6_000_000
_CHUNK = 500_000  # small, as the layers are: a layer of gigabytes has as many pieces
_SHARED = 4  # images share layers with others, so that some are there already and some are linked


@dataclass
class Outcome:
    """What came of the pushes: sums, and every failure and wrong result in words."""

    pushes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    kills: int = 0
    retries: int = 0
    resumed: int = 0
    pushed_bytes: int = 0
    resent_bytes: int = 0
    blobs: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, result: PushResult) -> None:
        self.pushes += 1
        self.retries += result.retries
        self.resumed += result.resumed
        self.pushed_bytes += result.pushed_bytes
        self.resent_bytes += result.resent_bytes
        self.blobs["pushed"] += result.pushed_blobs
        self.blobs["linked"] += result.mounted_blobs
        self.blobs["there already"] += result.reused_blobs

    def table(self) -> str:
        """The figures, as a table in Markdown."""
        rows: list[tuple[str, object]] = [
            *((f"fault: {kind}", self.faults[kind]) for kind in faulty_proxy.FAULTS),
            ("registry killed and restarted in the middle", self.kills),
            ("requests", self.requests),
            ("pushes", self.pushes),
            *((f"blobs {fate}", count) for fate, count in sorted(self.blobs.items())),
            ("tries repeated by the client", self.retries),
            ("uploads resumed in the middle", self.resumed),
            ("bytes of layers", self.pushed_bytes),
            ("bytes sent more than once", self.resent_bytes),
            ("failed pushes", len(self.failures)),
            ("wrong results", len(self.wrong)),
        ]
        lines = ["| what | count |", "|---|---:|", *(f"| {name} | {value:,} |" for name, value in rows)]
        return "\n".join([*lines, ""])


def run_pushes(folder: Path, count: int, seed: int) -> Outcome:
    """Push images with TLS and a password through the proxy; verify each straight from the registry."""
    outcome = Outcome()
    chance = random.Random(seed)  # noqa: S311  no secret
    store = Store(folder / "store")
    (folder / "registry").mkdir(parents=True)
    with (
        registry_server(folder / "registry", secure=True) as server,
        faulty_proxy.serve(server, seed) as proxy,
    ):
        for number in range(count):
            image = _image(store, chance, seed, number)
            repository = f"soak/repository{chance.randrange(5)}"
            target = f"{proxy.host}/{repository}:n{number}"
            killer = _Killer(server, outcome) if number % _KILL_EVERY == _KILL_EVERY - 1 else None
            try:
                result = push(image, store, target, options=_options(server), advance=killer or _ignore)
            except Exception as error:  # noqa: BLE001  whatever it is belongs into the table
                outcome.failures.append(f"push {number}: {type(error).__name__}: {error}")
                continue
            finally:
                if killer:
                    killer.join()
            outcome.add(result)
            outcome.wrong += [
                f"push {number}: {what}" for what in _problems(server, repository, number, image)
            ]
        outcome.faults, outcome.requests = proxy.counts, proxy.requests
    return outcome


@dataclass(kw_only=True)
class Compared:
    """What came of the same images, pushed by one program through the same faults."""

    program: str
    pushes: int = 0
    failed: int = 0
    wrong: int = 0
    seconds: float = 0.0
    requests: int = 0

    def row(self) -> str:
        """The figures, as a row of a table in Markdown."""
        return (
            f"| {self.program} | {self.pushes} | {self.failed} | {self.wrong} | {self.requests:,} "
            f"| {self.seconds:.0f} |"
        )


def compare(folder: Path, count: int, seed: int) -> list[Compared]:
    """Push the same images with this program and with skopeo; no registry is killed here."""
    programs = {
        "imagebuilder push": None,
        "skopeo copy": ["skopeo", "copy"],
        "skopeo copy --retry-times 12": ["skopeo", "copy", "--retry-times", "12"],
    }
    return [
        _compared(folder / str(number), name, words, count, seed)
        for number, (name, words) in enumerate(programs.items())
    ]


def _compared(folder: Path, name: str, words: list[str] | None, count: int, seed: int) -> Compared:
    found, chance = Compared(program=name), random.Random(seed)  # noqa: S311  no secret
    store = Store(folder / "store")
    (folder / "registry").mkdir(parents=True)
    with (
        registry_server(folder / "registry", secure=True) as server,
        faulty_proxy.serve(server, seed) as proxy,
    ):
        for number in range(count):
            image, place = _image(store, chance, seed, number), folder / "layout"
            repository = f"soak/repository{chance.randrange(5)}"
            layout.export(image, store, place)
            target = f"{proxy.host}/{repository}:n{number}"
            began = time.monotonic()
            found.pushes += 1
            try:
                if words is None:
                    push(image, store, target, options=_options(server))
                else:
                    run([*words, *_trust(server), f"oci:{place}", f"docker://{target}"], timeout=600)
            except Exception:  # noqa: BLE001  whatever it is, this push failed
                found.failed += 1
                continue
            finally:
                found.seconds += time.monotonic() - began
                shutil.rmtree(place)
            found.wrong += bool(list(_problems(server, repository, number, image)))
        found.requests = proxy.requests
    return found


def _trust(server: RegistryServer) -> list[str | Path]:
    return [
        *("--format", "oci", "--preserve-digests"),
        *("--dest-cert-dir", server.folder / "trust", "--dest-creds", f"{USER}:{PASSWORD}"),
    ]


def _options(server: RegistryServer) -> Options:
    session = requests.Session()
    session.verify = str(server.ca)
    return Options(
        chunk=_CHUNK,
        session=session,
        credentials=Credentials(user=USER, password=PASSWORD),
        pause=0.02,
        attempts=12,
    )


def _ignore(_count: int) -> None:
    """Nobody watches."""


def _image(store: Store, chance: random.Random, seed: int, number: int) -> ImageRecord:
    shared = {"shared": noise(seed * 1000 + chance.randrange(_SHARED), 400_000)}
    own = {"own": noise(seed * 1000 + 100 + number, chance.randrange(1000, _LARGEST))}
    small = {"small": noise(seed * 1000 + 50_000 + number, chance.randrange(1, 5000))}
    return put_image(store, [shared, own, small], label=str(number))


class _Killer:
    """Kills the registry once something has travelled, from a thread of its own, and starts it again."""

    def __init__(self, server: RegistryServer, outcome: Outcome) -> None:
        self._server, self._outcome = server, outcome
        self._once = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, _count: int) -> None:
        if self._once.acquire(blocking=False):
            self._thread = threading.Thread(target=self._restart)
            self._thread.start()

    def _restart(self) -> None:
        self._server.kill()
        self._server.start()
        self._outcome.kills += 1

    def join(self) -> None:
        if self._thread:
            self._thread.join()


def _problems(server: RegistryServer, repository: str, number: int, image: ImageRecord) -> Iterator[str]:
    """Read the image from the registry itself, with nothing of ours and with skopeo; compare all of it."""
    session = requests.Session()
    session.trust_env = False  # the environment's bundle would outrank the one here
    session.verify, session.auth = str(server.ca), (USER, PASSWORD)
    base = f"{server.url}/v2/{repository}"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    reply = session.get(f"{base}/manifests/n{number}", headers=accept, timeout=60)
    if _digest(reply.content) != image.manifest:
        yield f"the tag stands for {_digest(reply.content)}, not {image.manifest}"
        return
    manifest = reply.json()
    for part in (manifest["config"], *manifest["layers"]):
        data = session.get(f"{base}/blobs/{part['digest']}", timeout=60).content
        if _digest(data) != part["digest"] or len(data) != part["size"]:
            yield f"{part['digest']} has other bytes in the registry"
    words: list[str | Path] = [
        "skopeo",
        "inspect",
        "--cert-dir",
        server.folder / "trust",
        "--creds",
        f"{USER}:{PASSWORD}",
    ]
    seen = run([*words, f"docker://{server.host}/{repository}:n{number}"], timeout=120, check=False)
    if image.manifest not in seen.stdout:
        yield f"skopeo does not see it: {seen.stderr.strip()}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
