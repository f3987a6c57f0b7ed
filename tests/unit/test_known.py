"""What layers are known to give: learnt by one build, believed and held to by the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.layers import hints
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.store import EMPTY_LAYER, LayerRecord, Store
from imagebuilder.workflow.plans import layer_keys
from tests.support.wheels import dice, locked, make_wheel, splice
from tests.unit import samples

RECIPE = samples.recipe()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = {"demo/__init__.py": b"x = 1\n" * 500, "demo/data.bin": dice(1).randbytes(300_000)}
    return make_wheel(tmp_path, files)


def wheel_layers(lock: Lock) -> list[WheelLayer]:
    return [layer for layer in plans.plan(select(RECIPE), lock, ()).layers if isinstance(layer, WheelLayer)]


def keys_of(file: LockFile) -> tuple[tuple[str, ...], ...]:
    """The keys of the layers of each lock."""
    return layer_keys(select(RECIPE), file)


def learn(file: LockFile, store: Store) -> LockFile:
    return hints.learn(file, keys_of(file), store)


def made(lock: Lock, store: Store) -> list[LayerRecord]:
    """Records of a lock's layers, of blobs that hold nothing."""
    records = []
    for layer in wheel_layers(lock):
        digest, size = store.put_bytes(layer.key.encode())
        record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=7, media_type="x")
        store.put_layer(layer.key, record)
        records.append(record)
    return records


class TestTheLock:
    def test_it_means_the_same_whatever_is_known(self, store: Store) -> None:
        plain = LockFile(sections=(samples.lock(),))
        made(plain.sections[0], store)
        learnt = learn(plain, store)
        assert learnt.sections[0].layers
        assert learnt.checksum == plain.checksum
        assert learnt.sections[0].checksum == plain.sections[0].checksum
        assert plans.plan(select(RECIPE), learnt.sections[0], ()) == plans.plan(
            select(RECIPE), plain.sections[0], ()
        )
        assert lockfile.loads(lockfile.dumps(learnt), "x.lock") == learnt
        assert learnt.sections[0].knowing(()) == plain.sections[0]

    def test_a_layer_is_a_line(self, store: Store) -> None:
        made(samples.lock(), store)
        text = lockfile.dumps(learn(LockFile(sections=(samples.lock(),)), store))
        assert len([line for line in text.splitlines() if '"diff_id"' in line]) == len(
            wheel_layers(samples.lock())
        )

    def test_sections_of_several_platforms_know_their_own(self, store: Store) -> None:
        debs = (samples.deb("python3", "3.13.5-1", "arm64"),)
        other = samples.lock(architecture="arm64", wheels=(samples.wheel("numpy", "2.0"),), debs=debs)
        plain = LockFile(sections=(samples.lock(), other))
        made(other, store)
        learnt = learn(plain, store)
        assert [len(lock.layers) for lock in learnt.sections] == [0, 1]
        assert learnt.checksum == plain.checksum
        assert lockfile.loads(lockfile.dumps(learnt), "x.lock") == learnt

    def test_a_lock_that_is_resolved_again_keeps_the_layers_that_stay(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Those of its own history, and no others."""
        old = LockFile(sections=(samples.lock(),))
        made(old.sections[0], store)
        old = learn(old, store)
        assert old.sections[0].layers
        empty = Store(tmp_path / "empty")
        assert learn(old, empty) == old
        assert learn(old.plain, empty) == old.plain
        again = LockFile(sections=(samples.lock(wheels=samples.lock().wheels[:1]),))
        kept = hints.learn(again, keys_of(again), empty, old).sections[0].layers
        assert kept
        assert set(kept) < set(old.sections[0].layers)
        assert {layer.key for layer in kept} <= set(keys_of(again)[0])

    def test_remembering_writes_it_once(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        file = LockFile(sections=(samples.lock(),))
        lockfile.write(file, locks.path_for(path))
        count = len(made(samples.lock(), store))
        assert hints.remember(path, file, keys_of(file), store) == count
        before = locks.path_for(path).stat()
        assert hints.remember(path, lockfile.read(locks.path_for(path)), keys_of(file), store) == 0
        assert locks.path_for(path).stat().st_mtime_ns == before.st_mtime_ns
        assert len(lockfile.read(locks.path_for(path)).sections[0].layers) == count


class TestForget:
    def plan(self, wheel: Path) -> Plan:
        return plans.plan(select(RECIPE), samples.lock(wheels=(locked(wheel),)), ())

    def test_layers_of_wheels_are_made_again_whatever_their_records_say(
        self, wheel: Path, store: Store
    ) -> None:
        plan = self.plan(wheel)
        layer = next(layer for layer in plan.layers if isinstance(layer, WheelLayer))
        record = splice([wheel], store)
        store.put_layer(layer.key, record)
        assert hints.forget(plan, store) == {layer.key: record}
        assert store.layer(layer.key) is None
        for now, told in ((record, ()), (replace(record, diff_id="sha256:" + "3" * 64), (layer.title,))):
            store.put_layer(layer.key, now)
            assert hints.changed(plan, {layer.key: record}, store) == told

    @pytest.mark.parametrize("what", ["nothing", "diff_id", "bytes"])
    def test_other_layers_stay_where_they_are_what_was_recorded(
        self, wheel: Path, store: Store, what: str
    ) -> None:
        plan = self.plan(wheel)
        layer = plan.layers[0]
        assert not isinstance(layer, WheelLayer)
        record = splice([wheel], store)
        if what == "bytes":
            blob = store.blob(record.digest)
            blob.chmod(0o644)
            blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
        elif what == "diff_id":
            record = replace(record, diff_id="sha256:" + "3" * 64)
        store.put_layer(layer.key, record)
        assert hints.forget(plan, store) == ({} if what == "nothing" else {layer.key: record})
        assert (store.layer(layer.key) is None) is (what != "nothing")

    def test_an_empty_layer_stays_recorded(self, wheel: Path, store: Store) -> None:
        plan = self.plan(wheel)
        layer = plan.layers[0]
        store.put_layer(layer.key, EMPTY_LAYER)
        assert hints.forget(plan, store) == {}
        assert store.layer(layer.key) == EMPTY_LAYER
