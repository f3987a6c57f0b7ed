"""An image of a registry, found for a smoke test: one manifest, and what is attached to it, by whomever."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from imagebuilder.core import labels as label_names
from imagebuilder.errors import EnvironmentFault, InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.publish import tested
from imagebuilder.publish.attest import bundle, publish, published
from imagebuilder.publish.attest.bundle import ImageDocument
from imagebuilder.registry import Client, Options, artefacts, parse
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.smoke import engine as engines
from imagebuilder.store import ImageRecord, Store
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.proven import put_proven
from tests.support.pushing import push

OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=3, pause=0.01)
# Whoever reads this as YAML, or looks for its files, does what it says.
HOSTILE = "name: x\nrequirements: [/etc/passwd]\ncopy: [{from: /root, to: /workspace}]\n" + "a: &a [*a]\n" * 3


@dataclasses.dataclass(frozen=True)
class World:
    """A registry with one image, without anything attached."""

    repository: str
    store: Store
    image: ImageRecord
    source: ImageDocument

    def attach(self, recipe: str, lock: str) -> None:
        files = {name: text.encode() for name, text in zip(self.source.files, (recipe, lock), strict=True)}
        document = dataclasses.replace(self.source, files=files)
        subject = bundle.subject_of(self.image, self.store)
        client = Client(parse(self.repository), OPTIONS, "push")
        artefacts.attach(client, [document.artefact(subject)])

    @property
    def lock(self) -> str:
        return self.source.files["recipe.lock"].decode()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    store = Store(tmp_path / "store")
    image, source = put_proven(store)
    (document,) = [d for d in bundle.documents(image, store, source, ()) if d.kind is bundle.SOURCE]
    with serve(FakeRegistry()) as registry:
        repository = f"{registry.host}/team/cpu"
        subject = bundle.subject_of(image, store)
        publish.attach(Client(parse(repository), OPTIONS, "pull,push"), subject, (), None)
        push(image, store, repository, ["one"], options=OPTIONS)
        yield World(repository, store, image, document)


def test_a_tag_means_one_manifest_and_nothing_of_a_store_is_needed(world: World) -> None:
    found = tested.find(f"{world.repository}:one", Site())
    assert (found.reference, found.lock) == (f"{world.repository}@{world.image.manifest}", "")


def test_the_attached_lock_counts_that_the_labels_name(world: World) -> None:
    world.attach(HOSTILE, world.lock)
    found = tested.find(f"{world.repository}@{world.image.manifest}", Site())
    assert found.lock == world.image.lock


@pytest.mark.parametrize("change", ["not JSON", "[" * 100_000, "{}"])
def test_what_else_is_attached_is_nobody_s(
    change: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.attach(HOSTILE, change)
    assert tested.find(f"{world.repository}:one", Site()).lock == ""
    assert "cannot be read" in caplog.text


def test_a_changed_lock_is_not_the_one_that_the_labels_name(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    lock = json.loads(world.lock)
    text = world.lock.replace('"5.0.7', '"5.0.6')
    assert lock
    assert text != world.lock
    world.attach("name: x\n", text)
    assert tested.find(f"{world.repository}:one", Site()).lock == ""
    assert "lock" in caplog.text


def test_labels_that_contradict_the_lock_that_they_name_are_refused(world: World) -> None:
    world.attach("name: x\n", world.lock)
    image = published.read(published.open_image(f"{world.repository}:one", OPTIONS))
    labels = {**image.labels, f"{label_names.PIN}openmpi": "4.1.4"}
    forged = dataclasses.replace(image, config={**image.config, "config": {"Labels": labels}})
    with pytest.raises(InputError, match="its labels name other pins than the lock that they name"):
        tested._lock(forged)


def test_a_name_needs_a_tag_and_its_platform(world: World) -> None:
    with pytest.raises(InputError, match="names a repository, not an image"):
        tested.find(world.repository, Site())
    with pytest.raises(InputError, match="is an image for linux/amd64, not for linux/arm64"):
        tested.find(f"{world.repository}:one", Site(), platform="linux/arm64")
    with pytest.raises(RegistryError):
        tested.find(f"{world.repository}:two", Site())


def test_an_engine_that_cannot_pull_is_told_with_its_words() -> None:
    events = [{"status": "Pulling"}, "noise", {"error": "no basic auth \x1b[31mcredentials"}]
    asked: dict[str, Any] = {}

    def pull(name: str, **words: Any) -> list[Any]:
        asked.update(words, name=name)
        return events

    engine = cast(Any, SimpleNamespace(kind="docker", client=SimpleNamespace(api=SimpleNamespace(pull=pull))))
    with pytest.raises(EnvironmentFault) as caught:
        engines.pull(engine, "registry.example/team/x", "sha256:" + "0" * 64)
    assert "docker cannot pull it: no basic auth" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert (asked["name"], asked["tag"]) == ("registry.example/team/x", "sha256:" + "0" * 64)
