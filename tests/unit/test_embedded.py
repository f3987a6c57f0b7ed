"""The embedded engine: what is compiled comes after the system, in the caller's thread, of shared files."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core.progress import LineProgress
from imagebuilder.engines import embedded, schedule, steps
from imagebuilder.engines.embedded import BuildContext
from imagebuilder.errors import BuildError
from imagebuilder.fetch import locked
from imagebuilder.host import emulation
from imagebuilder.host.site import Site
from imagebuilder.layers.bytecode.interpreter import Interpreters
from imagebuilder.lock.model import Build, Lock, Source
from imagebuilder.plan import WheelLayer
from imagebuilder.store import LayerRecord, Store
from tests.unit import samples

SHARED = samples.deb("libc6", "2.41-12").model_copy(update={"sha256": "a" * 64, "size": 1})
OWN = samples.deb("gcc").model_copy(update={"sha256": "b" * 64, "size": 1})


def build_of(component: str, digit: str, *, path: str) -> Build:
    source = Source(
        name=component, version="1", path=path, file=f"{component}.tar", size=1, sha256=digit * 64
    )
    return Build(
        component=component, version="5.0.7", packages=(), system=("libc6",), debs=(OWN,), wheels=(),
        sources=(source,),
    )  # fmt: skip


LOCK: Lock = samples.lock(
    debs=(SHARED,),
    wheels=(),
    builds=(build_of("openmpi", "1", path="pool/x"), build_of("mpi4py", "2", path="")),
)
RECIPE = samples.recipe(pins={"openmpi": "5.0", "mpi4py": "4"}, build=("mpi4py", "openmpi"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What was made: name, how many blobs it stands on, and the thread."""
    order: list[tuple[str, int, int]] = []

    def fetch(
        packages: Sequence[Any], _lock: Lock, store: Store, _site: Site, *,
        cache: object, advance: Callable[[str, int], None], finished: Callable[[str], None],
    ) -> None:  # fmt: skip
        assert cache is None
        assert len({package.sha256 for package in packages}) in {0, 4}
        for sha256 in {package.sha256: None for package in packages}:
            store.download(sha256).parent.mkdir(parents=True, exist_ok=True)
            store.download(sha256).write_bytes(b"x")
            advance(sha256, 0)
            finished(sha256)

    def record(name: str, below: int, store: Store) -> LayerRecord:
        order.append((name, below, threading.get_ident()))
        digest, size = store.put_bytes(name.encode())
        return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")

    def system(
        parts: Sequence[plans.OsPart], _debs: object, store: Store, *_: object, **__: object
    ) -> tuple[LayerRecord, ...]:
        first = record("system", 0, store)
        return (first,) * len(parts)

    def compiled(
        layer: plans.BuiltLayer, files: dict[str, Path], below: Sequence[Path], store: Store, *_: object,
        **__: object,
    ) -> LayerRecord:  # fmt: skip
        assert all(file.is_file() for file in files.values())
        assert [path.read_bytes() for path in below] == [b"openmpi"][: len(below)]
        return record(layer.component, len(below), store)

    monkeypatch.setattr(locked, "fetch", fetch)
    monkeypatch.setattr(steps, "build_os_parts", system)
    monkeypatch.setattr(steps, "build_built_layer", compiled)
    monkeypatch.setattr(emulation, "require", lambda _platform: None)
    return order


def test_what_is_compiled_comes_after_the_system_and_on_what_it_needs(
    made: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    plan = plans.plan(select(RECIPE), LOCK, ())
    store = Store(tmp_path)
    context = BuildContext(lock=LOCK, store=store, site=Site(), progress=LineProgress(io.StringIO()))
    built = embedded.build(plan, context)
    here = threading.get_ident()
    assert made == [("system", 0, here), ("openmpi", 0, here), ("mpi4py", 1, here)]
    # One group of packages and the state, what is compiled, and the settings.
    assert (built.made, built.reused) == (5, 0)
    again = embedded.build(plan, context)
    assert (again.made, again.reused) == (0, 5)
    # Another system, the same components: they are not compiled again.
    more = LOCK.model_copy(update={"debs": (*LOCK.debs, OWN.model_copy(update={"name": "htop"}))})
    third = embedded.build(plans.plan(select(RECIPE), more, ()), context)
    assert (third.made, [name for name, _, _ in made[3:]]) == (2, ["system"])


def test_a_part_that_is_gone_is_made_with_its_system_and_the_others_stay(
    made: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    plan = plans.plan(select(RECIPE), LOCK, ())
    store = Store(tmp_path)
    said = io.StringIO()
    context = BuildContext(lock=LOCK, store=store, site=Site(), progress=LineProgress(said))
    first = embedded.build(plan, context).image
    store.layer_path(plan.layers[1].key).unlink()
    assert embedded.missing_layers(plan, store) == (plan.layers[1],)
    said.truncate(0)
    again = embedded.build(plan, context)
    assert (again.image, again.made, made[-1][0]) == (first, 1, "system")
    lines = [line.split()[0] for line in said.getvalue().strip("\0").splitlines() if "debian trixie" in line]
    # What is there, the one line of installing, its end, and the parts.
    assert lines == ["cached", "installing", "done", "done", "done"]
    assert embedded.missing_layers(plan, store) == ()


def test_a_system_that_cannot_be_made_leaves_no_part(
    made: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plans.plan(select(RECIPE), LOCK, ())
    store = Store(tmp_path)

    def fail(*_: object) -> None:
        raise BuildError("no room")

    monkeypatch.setattr(steps, "build_os_parts", fail)
    said = io.StringIO()
    with pytest.raises(BuildError, match="no room"):
        embedded.build(plan, BuildContext(lock=LOCK, store=store, site=Site(), progress=LineProgress(said)))
    assert made == []
    assert "failed       debian trixie, 1 packages" in said.getvalue()
    assert {layer for layer in plan.layers if isinstance(layer, plans.OsPart)} <= set(
        embedded.missing_layers(plan, store)
    )


class SlowProgress(LineProgress):
    """Takes its time to begin a row, as a thread that is interrupted there does."""

    def begin(self, key: str, title: str, state: str, total: int = 0) -> None:
        time.sleep(0.2)
        super().begin(key, title, state, total)


def test_two_downloads_of_one_layer_may_begin_at_once(tmp_path: Path) -> None:
    lock: Lock = samples.lock(wheels=(samples.wheel("one"), samples.wheel("two")))
    planned = plans.plan(select(samples.recipe()), lock, ())
    layers = [x for x in planned.layers if isinstance(x, WheelLayer) and len(x.wheels) == 2]
    context = BuildContext(
        lock=lock, store=Store(tmp_path), site=Site(), progress=SlowProgress(io.StringIO())
    )
    with ThreadPoolExecutor() as pool, Interpreters(context.store) as pythons:
        queue = schedule._Queue(layers, context, pool, pythons)
        list(pool.map(lambda wheel: queue._received(wheel.sha256, 1), layers[0].wheels))
    assert queue.fetched == 2
