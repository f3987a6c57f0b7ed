"""Two hosts fill one cache in a real registry, and a third one with an empty store lives on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagebuilder.registry import cache
from tests.support.cachehosts import PLACE, Host, lock_of, two_wheels
from tests.support.pushing import push
from tests.support.servers import RegistryServer, registry_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    (tmp_path / "registry").mkdir()
    with registry_server(tmp_path / "registry") as running:
        yield running


def test_two_hosts_fill_one_cache_and_a_third_has_nothing_to_fetch(
    server: RegistryServer, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    wheels = two_wheels(tmp_path / "wheels")
    lock = lock_of(wheels)
    makers = [Host(tmp_path / name, server.host, wheels) for name in ("first", "second")]
    for host in makers:
        host.has(lock)
    with ThreadPoolExecutor(2) as pool:
        images = [built.image for built in pool.map(lambda host: host.build(lock), makers)]
        assert images[0].manifest == images[1].manifest
        known = makers[0].learn(lock)
        filled = list(pool.map(lambda host: host.fill(known), makers))
    assert {item.kept for item in filled} == {4}
    assert sum(item.bytes for item in filled) >= sum(wheel.size for wheel in lock.wheels)

    third = Host(tmp_path / "third", server.host, wheels)
    built = third.build(known)
    assert built.image.manifest == images[0].manifest
    assert (built.made, built.away, built.fetched) == (0, 2, 0)
    pushed = push(built.image, third.store, f"{server.host}/team/app:one")
    assert (pushed.mounted_blobs, pushed.pushed_blobs) == (2, 1)  # the config is new there
    assert not any(third.store.has_blob(layer.record.digest) for layer in built.image.layers)

    # The cache is cleaned up: what is needed now is made of its packages, to the same digest.
    shutil.rmtree(server.folder / "data" / "docker" / "registry" / "v2" / "repositories" / PLACE)
    records = [layer.record for layer in built.image.layers]
    lost = cache.bring(records, third.store, third.site, lambda _: None, third.progress.note)
    assert lost == tuple(records)
    third.has(lock)
    again = third.build(known, whole=True)
    assert (again.made, again.image.manifest) == (2, images[0].manifest)
