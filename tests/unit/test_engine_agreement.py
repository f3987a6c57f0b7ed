"""A lock against what others say of the same things, when an image is made."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.bases import fetch, read
from imagebuilder.catalog import select
from imagebuilder.core.progress import LineProgress
from imagebuilder.engines import agreement
from imagebuilder.engines.embedded import BuildContext
from imagebuilder.errors import LockError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import BaseImage, Lock
from imagebuilder.registry import pull
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from tests.support.wheels import locked, make_wheel
from tests.unit import samples

IMAGE = samples.base_image()
Find = Callable[..., pull.PulledImage]


def context(tmp_path: Path, lock: Lock) -> tuple[BuildContext, io.StringIO]:
    said = io.StringIO()
    made = BuildContext(lock=lock, store=Store(tmp_path / "store"), site=Site(), progress=LineProgress(said))
    return dataclasses.replace(
        made, request=lambda: request(select(samples.recipe(pins={}, pip=("numpy",))))
    ), said


def there(image: BaseImage) -> pull.PulledImage:
    """What a registry has that is just what the lock says."""
    return pull.PulledImage(
        digest=image.digest,
        index=image.index,
        layers=tuple(pull.Layer(**layer.model_dump()) for layer in image.layers),
        created=image.created,
        config={
            "Env": [f"{name}={value}" for name, value in image.env.items()],
            "Labels": dict(image.labels),
        },
    )


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[[Find], None]:
    monkeypatch.setattr(fetch, "client_of", lambda *_: None)
    return lambda answer: monkeypatch.setattr(pull, "find", answer)


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"LD_PRELOAD": "/x"}},
        {"labels": {}},
        {"user": "evil"},
        {"layers": IMAGE.layers[:1]},
        {"digest": f"sha256:{'1' * 64}"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_base_is_what_its_registry_has(
    tmp_path: Path, find: Callable[[Find], None], change: dict[str, object]
) -> None:
    find(lambda *_: there(IMAGE))
    agreement.require_base(context(tmp_path, samples.lock(image=IMAGE))[0])
    lock = samples.lock(image=IMAGE.model_copy(update=change))
    with pytest.raises(LockError, match=rf"the lock of sample: image\.{next(iter(change))}: differs from"):
        agreement.require_base(context(tmp_path, lock)[0])


def test_a_host_without_the_network_is_told_that_nobody_looked(
    tmp_path: Path, find: Callable[[Find], None]
) -> None:
    def silent(*_: object) -> pull.PulledImage:
        raise RegistryError("gave no answer") from OSError("no route")

    def unknown(*_: object) -> pull.PulledImage:
        raise RegistryError("there is no such image")

    made, said = context(tmp_path, samples.lock(image=IMAGE))
    find(silent)
    agreement.require_base(made)
    assert "was not compared with its registry" in said.getvalue()
    find(unknown)
    with pytest.raises(RegistryError, match="no such image"):
        agreement.require_base(made)


def test_the_system_in_a_base_is_what_the_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    monkeypatch.setattr(read, "again", lambda *_: samples.base(IMAGE).system)
    assert read.hidden_differences(IMAGE, store) == ()
    other = IMAGE.model_copy(update={"packages": IMAGE.packages[1:], "accounts": {"evil": 1000}})
    assert read.hidden_differences(other, store) == ("packages", "accounts")


def test_a_wheel_that_no_metadata_requires_is_refused(tmp_path: Path) -> None:
    made, _ = context(tmp_path, samples.lock(wheels=()))
    found = {}
    for name in ("evil", "numpy", "pip"):
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
        path = make_wheel(tmp_path, {f"{name}-1.0.dist-info/METADATA": text}, name=name)
        found[name] = locked(path)
        made.store.take_download(path, found[name].sha256)
    asked = request(select(samples.recipe(pins={}, pip=("numpy",))))
    needed = samples.lock(wheels=(found["numpy"], found["pip"]))
    agreement.require_image(dataclasses.replace(made, lock=needed), asked)
    more = samples.lock(wheels=tuple(found.values()))
    with pytest.raises(LockError, match=r"wheels\[0\]: nothing in the lock requires evil 1\.0"):
        agreement.require_image(dataclasses.replace(made, lock=more), asked)
