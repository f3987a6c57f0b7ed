"""An image's age: who is asked, in which order, and what is said where nobody knows."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import age, bundle, publish, published
from imagebuilder.registry import Client, Options, parse
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.store import ImageRecord, Store
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.proven import put_proven
from tests.support.pushing import push
from tests.unit import samples

# What the lock of recipes/cpu-mpi.yaml says.
CREATED = lockfile.read(samples.RECIPES / "cpu-mpi.lock").sections[0].created
OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=1)


class Dated:
    """Says of manifests or blobs when they came."""

    def __init__(self) -> None:
        self.stamps: dict[str, str] = {}

    def __call__(self, handler: Handler) -> bool:
        reply, path = handler.reply, handler.path

        def dated(status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
            stamp = next((text for word, text in self.stamps.items() if word in path), "")
            reply(status, data, {**(headers or {}), **({"Last-Modified": stamp} if stamp else {})})

        vars(handler).pop("reply", None)
        reply = handler.reply
        handler.reply = dated  # type: ignore[method-assign]
        return False


@pytest.fixture
def dated() -> Dated:
    return Dated()


@pytest.fixture
def registry(dated: Dated) -> Iterator[FakeRegistry]:
    with serve(FakeRegistry(interfere=dated)) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def pushed(registry: FakeRegistry, store: Store, created: int) -> tuple[Client, ImageRecord]:
    image, source = put_proven(store)
    documents = bundle.documents(image, store, source, (), created)
    subject = bundle.subject_of(image, store)
    name = f"{registry.host}/x"
    push(image, store, name, ["one"], options=OPTIONS, attach=lambda c: publish.attach(c, subject, documents))
    return Client(parse(f"{name}:one"), OPTIONS), image


def told(client: Client, store: Store) -> age.Age | None:
    return age.of_registry(client, published.read(client), store)


def test_of_the_store(store: Store) -> None:
    image, _ = put_proven(store)
    os.utime(store.image_path(image.name), (1_700_000_000, 1_700_000_000))
    found = age.of_store(image, store)
    assert found is not None
    assert (found.time, found.source) == ("2023-11-14T22:13:20Z", "when it was built here")
    assert found.seconds == pytest.approx(time.time() - 1_700_000_000, abs=5)
    store.image_path(image.name).unlink()
    assert age.of_store(image, store) is None


def test_who_is_asked_in_which_order(registry: FakeRegistry, store: Store, dated: Dated) -> None:
    client, image = pushed(registry, store, 1_600_000_000)
    for place, digest in (("manifests", image.manifest), ("blobs", image.config)):
        dated.stamps = {f"{place}/{digest}": "Tue, 14 Nov 2023 22:13:20 GMT"}
        found = told(client, store)
        assert found is not None
        assert found.time == "2023-11-14T22:13:20Z"
        assert found.source.startswith(f"when its {'manifest' if place == 'manifests' else 'config'} arrived")
    dated.stamps = {}
    found = told(client, store)
    assert found is not None
    assert (found.time, found.source) == ("2020-09-13T12:26:40Z", "the time that its documents claim")


@pytest.mark.parametrize("created", ["1970-01-01T00:00:00Z", ["x"], None])
def test_of_an_image_without_a_date_this_host_may_know(
    registry: FakeRegistry, store: Store, created: object, tmp_path: Path
) -> None:
    client, image = pushed(registry, store, 0)
    read = published.read(client)
    bare = dataclasses.replace(read, config={**read.config, "created": created})
    assert age.of_registry(client, bare, Store(tmp_path / "empty")) is None
    found = age.of_registry(client, bare, store)
    assert found is not None
    assert found.source == "when this host tested the same image"
    assert store.report(image.manifest).exists()


@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "yesterday",
        "\u00b2",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "x" * 9000,
    ],
)
def test_dates_that_are_none(registry: FakeRegistry, store: Store, dated: Dated, stamp: str) -> None:
    client, _ = pushed(registry, store, 0)
    dated.stamps = {"manifests/": stamp, "blobs/": stamp}
    found = told(client, store)
    assert found is not None
    assert (found.time, found.source) == (CREATED, "the time that its config claims")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (119, "1 minute"),
        (7200, "2 hours"),
        (90_000, "1 day"),
        (10**8, "3 years"),
    ],
)
def test_words_for_a_length_of_time(seconds: int, words: str) -> None:
    assert str(age.Age(time="t", seconds=seconds, source="s")) == f"{words} (t, s)"
