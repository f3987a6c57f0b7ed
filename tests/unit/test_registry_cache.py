"""The cache of layers and packages: what it has stays there until needed, and what it gives is checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.core.progress import LineProgress, no_advance
from imagebuilder.engines import embedded, schedule
from imagebuilder.engines.context import BuildContext
from imagebuilder.errors import LockError, RegistryError, StoreError
from imagebuilder.fetch import download
from imagebuilder.fetch import locked as supply
from imagebuilder.layers import hints
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import ProjectLayer, User
from imagebuilder.registry import Destination, upload
from imagebuilder.registry import cache as caches
from imagebuilder.resolve import debian, python
from imagebuilder.store import cache as store_cache
from imagebuilder.workflow import sharing
from tests.support.cachehosts import PLACE, Host, lock_of, plan_of, two_wheels
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.pushing import push


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, Path]:
    return two_wheels(tmp_path)


@pytest.fixture
def lock(wheels: dict[str, Path]) -> Lock:
    return lock_of(wheels)


class FakedHost(Host):
    """A host whose registry is in memory, and can be told to misbehave."""

    def __init__(self, folder: Path, shop: FakeRegistry, wheels: dict[str, Path]) -> None:
        super().__init__(folder, shop.host, wheels)
        self.shop = shop


@pytest.fixture
def first(tmp_path: Path, registry: FakeRegistry, wheels: dict[str, Path], lock: Lock) -> FakedHost:
    """A host that has built the image, and whose layers the cache has."""
    host = FakedHost(tmp_path / "first", registry, wheels)
    host.has(lock)
    image = host.build(lock).image
    for layer in image.layers:
        data = host.store.blob(layer.record.digest).read_bytes()
        registry.blobs[PLACE, layer.record.digest] = data
    registry.log.clear()
    return host


@pytest.fixture
def known(first: FakedHost, lock: Lock) -> Lock:
    """The lock as the first build leaves it."""
    learnt = first.learn(lock)
    assert len(learnt.layers) == 2
    return learnt


@pytest.fixture
def second(tmp_path: Path, first: FakedHost) -> FakedHost:
    """A host with an empty store."""
    return FakedHost(tmp_path / "second", first.shop, first.wheels)


def digest_of(first: FakedHost, lock: Lock) -> str:
    image = first.store.image(plan_of(lock).name)
    assert image is not None
    return image.manifest


def test_an_empty_store_fetches_nothing(first: FakedHost, second: FakedHost, known: Lock) -> None:
    built = second.build(known)
    assert built.image.manifest == digest_of(first, known)
    assert (built.made, built.reused, built.away, built.fetched) == (0, 0, 2, 0)
    assert second.shop.count("GET", "/blobs/") == 0
    assert second.store.image(built.image.name) == built.image
    assert not any(second.store.has_blob(layer.record.digest) for layer in built.image.layers)
    assert not any(layer.key in second.said.getvalue() for layer in plan_of(known).layers)


def test_a_layer_that_the_lock_does_not_name_is_made(second: FakedHost, lock: Lock) -> None:
    second.has(lock)
    built = second.build(lock)
    assert (built.made, built.away) == (2, 0)
    assert second.shop.log == []


def test_who_reads_the_image_gets_its_layers(first: FakedHost, second: FakedHost, known: Lock) -> None:
    built = second.build(known, whole=True)
    assert (built.made, built.reused, built.away) == (0, 2, 0)
    assert built.fetched == sum(layer.record.size for layer in built.image.layers)
    for layer in built.image.layers:
        blob = second.store.blob(layer.record.digest)
        assert blob.read_bytes() == first.store.blob(layer.record.digest).read_bytes()
        assert blob.stat().st_mode & 0o222 == 0


def test_what_came_from_a_cache_is_made_again_on_demand(second: FakedHost, known: Lock) -> None:
    second.build(known, whole=True)
    assert second.build(known).reused == 2
    second.has(known)
    assert hints.forget(plan_of(known), second.store) == {}
    built = second.build(known, remake=True)
    assert (built.made, built.reused) == (2, 0)
    assert second.build(known, remake=True).reused == 2


def test_what_one_lock_says_of_a_layer_means_nothing_to_another(
    first: FakedHost, second: FakedHost, known: Lock, lock: Lock
) -> None:
    """A stranger's lock names other bytes for a layer, and the cache has them: a later lock is not misled."""
    one, two = known.layers
    swapped = known.knowing(
        (two.model_copy(update={"key": one.key}), one.model_copy(update={"key": two.key}))
    )
    assert second.build(swapped, whole=True).image.manifest != digest_of(first, known)
    second.has(known)
    for good in (known, lock):
        built = second.build(good)
        assert built.image.manifest == digest_of(first, known)
    assert (built.made, built.reused) == (2, 0)  # the lock without layers makes its own


def test_no_new_lock_says_what_only_a_cache_said(second: FakedHost, known: Lock, lock: Lock) -> None:
    """What nobody made on this host gets into no other lock."""
    second.build(known, whole=True)
    keys = [[layer.key for layer in plan_of(lock).layers]]
    assert hints.learn(LockFile(sections=(lock,)), keys, second.store).sections == (lock,)
    assert hints.learn(LockFile(sections=(known,)), keys, second.store).sections == (known,)


def test_the_store_keeps_an_image_whose_layers_are_away(second: FakedHost, known: Lock) -> None:
    image = second.build(known).image
    assert store_cache.verify(second.store, no_advance) == ()
    assert store_cache.prune(second.store, 10**9).files == 0
    assert second.store.image(image.name) == image


# Pushing


def test_a_push_links_what_stays_away(second: FakedHost, known: Lock) -> None:
    built = second.build(known)
    result = push(built.image, second.store, f"{second.registry}/team/app:one")
    assert result.digest == built.image.manifest
    assert (result.mounted_blobs, result.pushed_blobs) == (2, 1)  # the config is new
    assert second.shop.count("GET", "/blobs/") == 0


def test_a_layer_without_a_link_travels_through(second: FakedHost, known: Lock) -> None:
    """Some registries link nothing."""
    image = second.build(known).image
    place, second.shop.blobs = second.shop.blobs, {}
    brought: list[str] = []

    def bring(blob: object) -> None:
        digest = blob.digest  # type: ignore[attr-defined]
        brought.append(digest)
        second.store.put_bytes(place[PLACE, digest])

    where = Destination(reference=f"{second.registry}/team/app:one")
    result = upload.push(image, second.store, where, bring=bring)
    assert sorted(brought) == sorted(layer.record.digest for layer in image.layers)
    assert (result.mounted_blobs, result.pushed_blobs) == (0, 3)


def test_a_layer_that_nobody_has_any_more_ends_a_push(second: FakedHost, known: Lock) -> None:
    image = second.build(known).image
    second.shop.blobs.clear()
    with pytest.raises(StoreError, match="no registry has them any more"):
        caches.require_here(
            [layer.record for layer in image.layers],
            image.name,
            second.store,
            second.site,
            second.progress,
        )
    assert second.store.image(image.name) is None  # so the next build makes them


# Packages


def test_packages_come_from_the_cache(first: FakedHost, second: FakedHost, lock: Lock) -> None:
    for sha256, path in first.wheels.items():
        first.shop.blobs[PLACE, f"sha256:{sha256}"] = path.read_bytes()
    counted: list[int] = []
    done: list[str] = []
    supply.fetch(
        lock.wheels,
        lock,
        second.store,
        second.site,
        cache=second.cache(),
        advance=lambda _sha256, count: counted.append(count),
        finished=done.append,
    )
    assert sorted(done) == sorted(wheel.sha256 for wheel in lock.wheels)
    assert sum(counted) == sum(wheel.size for wheel in lock.wheels)
    assert supply.absent(lock.wheels, second.store) == ()


# Filling


def kept(host: FakedHost, lock: Lock) -> set[str]:
    """The blobs that the lock's manifest in the cache lists."""
    _, data = host.shop.manifests[PLACE, lock.checksum]
    document = json.loads(data)
    assert document["artifactType"] == caches.ARTEFACT_TYPE
    return {layer["digest"] for layer in document["layers"]}


def blobs_of(lock: Lock) -> set[str]:
    return {f"sha256:{wheel.sha256}" for wheel in lock.wheels} | {layer.digest for layer in lock.layers}


def test_everything_goes_into_the_cache_once(first: FakedHost, second: FakedHost, known: Lock) -> None:
    first.shop.blobs.clear()
    result = first.fill(known)
    assert (result.blobs, result.kept) == (4, 4)
    assert kept(first, known) == blobs_of(known)
    assert (first.fill(known).blobs, first.fill(known).kept) == (0, 4)
    # A host that has nothing itself lists what the cache has.
    second.build(known)
    first.shop.manifests.clear()
    assert (second.fill(known).blobs, kept(second, known)) == (0, blobs_of(known))


def test_a_large_wheel_goes_into_the_cache_as_its_layer_only(
    first: FakedHost, second: FakedHost, known: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.shop.blobs.clear()
    large = max(known.wheels, key=lambda wheel: wheel.size)
    monkeypatch.setattr(sharing, "OWN_LAYER_BYTES", large.size)
    # A host that has only packages puts those there.
    second.has(known)
    assert second.fill(known).kept == 2
    first.shop.blobs.clear()
    assert first.fill(known).kept == 2 + sum(wheel.size < large.size for wheel in known.wheels)
    assert (PLACE, f"sha256:{large.sha256}") not in first.shop.blobs


def test_several_hosts_fill_a_cache_at_once(first: FakedHost, second: FakedHost, known: Lock) -> None:
    """Each writes the manifest: what one of them has put stays listed."""
    second.build(known)
    first.shop.blobs.clear()
    shutil.rmtree(first.store.root / "downloads")  # one has layers only
    second.has(known)  # the other one packages only
    both = threading.Barrier(2)

    def together(handler: Handler) -> bool:
        if handler.command == "PUT" and handler.path.endswith(known.checksum):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1)
        return False

    first.shop.interfere = together  # the one that comes last knew nothing of the other one's blobs
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(host.fill, known) for host in (first, second)]:
            job.result()
    assert kept(first, known) == blobs_of(known)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "DENIED", "the registry does not let this account do that"),
        (405, "UNSUPPORTED", "the registry is read-only"),
        (507, "UNKNOWN", "the registry's disk is full"),
    ],
)
def test_a_cache_that_takes_nothing_says_so(
    first: FakedHost, known: Lock, status: int, code: str, words: str
) -> None:
    first.shop.blobs.clear()

    def refuse(handler: Handler) -> bool:
        if handler.command not in {"POST", "PUT", "PATCH"}:
            return False
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        handler.refuse(status, code)
        return True

    first.shop.interfere = refuse
    with pytest.raises(RegistryError, match=words):
        first.fill(known)
    assert first.shop.manifests == {}


def test_the_user_s_own_files_stay_here(lock: Lock) -> None:
    own = ProjectLayer(
        source="src", target="/app", checksum="1" * 64, user=User(name="root", uid=0, home="/root")
    )
    plan = dataclasses.replace(plan_of(lock), layers=(*plan_of(lock).layers, own))
    assert plan.locked == plan_of(lock).layers
    keys = plans.KeysLayer(image="x", lock=lock.checksum)
    assert dataclasses.replace(plan, layers=(keys,)).locked == ()


# Faults: each ends with the right digest.


def forbid(handler: Handler) -> bool:
    handler.refuse(403, "DENIED")
    return True


def hang(_handler: Handler) -> bool:
    time.sleep(1.5)
    return False


def lie_about_blobs(handler: Handler) -> bool:
    """Give other bytes of the same length."""
    found = re.search(r"/blobs/(sha256:[0-9a-f]{64})", handler.path)
    if handler.command != "GET" or not found:
        return False
    data = handler.registry.blobs[PLACE, found[1]]
    handler.reply(200, bytes(len(data)))
    return True


def lose_blobs(handler: Handler) -> bool:
    """Clean up between the question and the transfer."""
    if handler.command == "GET" and "/blobs/" in handler.path:
        handler.refuse(404, "BLOB_UNKNOWN")
        return True
    return False


def cut_blobs(handler: Handler) -> bool:
    if handler.command == "GET" and "/blobs/" in handler.path:
        handler.send_response(200)
        handler.send_header("Content-Length", "90000")
        handler.end_headers()
        handler.wfile.write(b"x" * 10)
        handler.close_connection = True
        return True
    return False


def drip(handler: Handler) -> bool:
    """Send a byte now and then."""
    if handler.command == "GET" and "/blobs/" in handler.path:
        handler.send_response(200)
        handler.send_header("Content-Length", "90000")
        handler.end_headers()
        for _ in range(40):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)
        handler.close_connection = True
        return True
    return False


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (forbid, "is not used any more: the registry does not let this account do that"),
        (hang, "is not used any more: "),
        (lie_about_blobs, "a blob has other bytes: wanted sha256 "),
        (lose_blobs, "is not used any more: "),
        (cut_blobs, "is not used any more: a blob broke off: "),
        (drip, "is not used any more: sends less than 250 kB a second"),
    ],
)
def test_a_cache_that_fails_costs_little_and_changes_nothing(
    first: FakedHost,
    second: FakedHost,
    known: Lock,
    fault: Callable[[Handler], bool],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault in {hang, cut_blobs, drip}:
        monkeypatch.setattr(caches, "PATIENCE", 0.4)
    second.has(known)
    second.shop.interfere = fault
    started = time.monotonic()
    built = second.build(known, whole=True)
    assert time.monotonic() - started < 60  # the host may be busy
    assert built.image.manifest == digest_of(first, known)
    assert (built.made, built.away) == (2, 0)
    assert words in second.said.getvalue()


def test_a_cache_that_is_away_is_asked_once(first: FakedHost, second: FakedHost, known: Lock) -> None:
    second.registry = "127.0.0.1:1"
    second.has(known)
    built = second.build(known)
    assert (built.made, built.image.manifest) == (2, digest_of(first, known))
    said = second.said.getvalue()
    assert said.count("is not used any more: nothing listens at 127.0.0.1:1") == 1


def test_another_size_is_not_the_layer(first: FakedHost, second: FakedHost, known: Lock) -> None:
    second.has(known)
    for place in second.shop.blobs:
        second.shop.blobs[place] += b"more"
    built = second.build(known)
    assert (built.made, built.image.manifest) == (2, digest_of(first, known))


def test_a_lock_that_lies_about_what_is_inside_a_layer_ends_there(second: FakedHost, known: Lock) -> None:
    wrong = known.layers[0].model_copy(update={"diff_id": "sha256:" + "3" * 64})
    with pytest.raises(LockError, match="but the lock says sha256:3333"):
        second.build(known.knowing((wrong, known.layers[1])), whole=True)
    assert not second.store.has_blob(wrong.digest)
    assert second.store.image_names() == ()


def test_a_lock_cannot_deny_a_layer(second: FakedHost, known: Lock) -> None:
    """A layer of packages is never empty: a lock that says so is not believed."""
    empty = known.layers[0].model_copy(update={"size": 0, "unpacked": 0})
    second.has(known)
    with pytest.raises(LockError, match="the layer's packages give"):
        second.build(known.knowing((empty, known.layers[1])))


def test_the_rest_of_a_package_comes_from_elsewhere(
    first: FakedHost, second: FakedHost, known: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slow cache sent is kept, and the index gives the rest."""
    asked: list[str] = []
    wheel = known.wheels[0]
    second.shop.blobs[PLACE, f"sha256:{wheel.sha256}"] = first.wheels[wheel.sha256].read_bytes()
    second.shop.interfere = cut_blobs

    def elsewhere(downloads: object, *_: object) -> None:
        asked.extend(item.sha256 for item in downloads)  # type: ignore[attr-defined]

    monkeypatch.setattr(caches, "PATIENCE", 0.4)
    monkeypatch.setattr(download, "fetch", elsewhere)
    monkeypatch.setattr(debian, "glibc", lambda _: "2.41")
    monkeypatch.setattr(python, "locate_wheels", lambda *_: {w.sha256: () for w in known.wheels})
    supply.fetch(
        known.wheels, known, second.store, second.site, cache=second.cache(),
        advance=lambda _sha256, _count: None, finished=lambda _sha256: None,
    )  # fmt: skip
    assert sorted(asked) == sorted(w.sha256 for w in known.wheels)


def test_a_build_that_is_stopped_stops_its_transfers(second: FakedHost, known: Lock) -> None:
    class Stopped(Exception):
        pass

    class Stopping(LineProgress):
        def advance(self, *_: object) -> None:
            raise Stopped

    context = BuildContext(
        lock=known,
        store=second.store,
        site=second.site,
        progress=Stopping(second.said),
        cache=second.cache(),
        whole=True,
    )
    with pytest.raises(Stopped):
        embedded.build(plan_of(known), context)


assert schedule  # the module that makes layers is loaded before the clock of the tests with limits starts
