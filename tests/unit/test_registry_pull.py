"""A layer of a base comes over a connection that breaks, and is checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagebuilder.errors import FetchError
from imagebuilder.registry import Client, Options, parse, pull
from imagebuilder.store import Store
from tests.support.fake_registry import FakeRegistry, Handler, serve

DATA = bytes(range(256)) * 16_000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
LAYER = pull.Layer(digest=DIGEST, diff_id=DIGEST, size=len(DATA), media_type="x")
OPTIONS = Options(insecure=True, attempts=3, pause=0.001)


def fetched(registry: FakeRegistry, store: Store) -> int:
    told: list[int] = []
    pull.fetch(Client(parse(f"{registry.host}/x"), OPTIONS), LAYER, store, told.append)
    return sum(told)


def test_a_layer_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    asked: list[str] = []

    def interfere(handler: Handler) -> bool:
        if "/blobs/" not in handler.path:
            return False
        asked.append(handler.headers.get("Range", ""))
        start = int(asked[-1].strip("bytes=-") or 0)
        piece = DATA[start : start + 1_500_000]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(DATA) - start))
        handler.end_headers()
        handler.wfile.write(piece)
        handler.close_connection = True
        return True

    store = Store(tmp_path)
    with serve(FakeRegistry(interfere=interfere)) as registry:
        assert fetched(registry, store) == len(DATA)
    assert store.download(DIGEST.removeprefix("sha256:")).read_bytes() == DATA
    assert [bool(text) for text in asked] == [False, *[True] * (len(asked) - 1)]
    assert len(asked) > 2


def test_a_registry_without_ranges_is_asked_for_all_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = store.download(DIGEST.removeprefix("sha256:"))
    place.parent.mkdir(parents=True)
    place.with_name(f"{place.name}.part").write_bytes(b"x" * 1000)
    with serve(FakeRegistry(blobs={("x", DIGEST): DATA})) as registry:
        assert fetched(registry, store) == len(DATA)
    assert place.read_bytes() == DATA


def test_another_layer_of_the_same_size_is_refused(tmp_path: Path) -> None:
    store, other = Store(tmp_path), b"x" * len(DATA)
    with serve(FakeRegistry(blobs={("x", DIGEST): other})) as registry:
        with pytest.raises(FetchError) as caught:
            fetched(registry, store)
        assert f"wanted {DIGEST.replace(':', ' ')}, got " in str(caught.value)
        assert caught.value.problems[0].where == f"{registry.host}/x@{DIGEST}"
    assert not any(path.is_file() for path in store.download("0" * 64).parent.glob("*"))
