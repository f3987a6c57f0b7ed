"""What layers of wheels are known to give: learnt by one build, believed and held to by the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder import known, lockfile
from imagebuilder import lock as locks
from imagebuilder import plan as plans
from imagebuilder.errors import BuildError
from imagebuilder.layers import splice as splicing
from imagebuilder.lock import KnownLayer, Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.store import DamagedDownloadError, LayerRecord, Store
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


def known_of(record: LayerRecord) -> KnownLayer:
    return KnownLayer(
        key="0" * 64,
        digest=record.digest,
        diff_id=record.diff_id,
        size=record.size,
        unpacked=record.unpacked,
    )


def wheel_layers(lock: Lock) -> list[WheelLayer]:
    return [layer for layer in plans.plan(RECIPE, lock, ()).layers if isinstance(layer, WheelLayer)]


def made(lock: Lock, store: Store) -> list[LayerRecord]:
    """Records of a lock's layers, of blobs that hold nothing."""
    records = []
    for layer in wheel_layers(lock):
        digest, size = store.put_bytes(layer.key.encode())
        record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=7, media_type="x")
        store.put_layer(layer.key, record)
        records.append(record)
    return records


class TestSplicing:
    def test_what_is_known_is_not_unpacked(
        self, wheel: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proven = splice([wheel], store)
        monkeypatch.setattr(splicing, "Unpacking", None)
        other = Store(tmp_path / "other")
        counts: list[int] = []
        assert splice([wheel], other, counts.append, known=known_of(proven)) == proven
        assert sum(counts) == wheel.stat().st_size
        assert other.blob(proven.digest).read_bytes() == store.blob(proven.digest).read_bytes()

    @pytest.mark.parametrize("change", [{"digest": "sha256:" + "1" * 64}, {"size": 5}])
    def test_another_blob_than_is_known_is_proven_instead(
        self, wheel: Path, store: Store, change: dict[str, object]
    ) -> None:
        proven = splice([wheel], store)
        wrong = known_of(proven).model_copy(update={**change, "diff_id": "sha256:" + "2" * 64})
        assert splice([wheel], store, known=wrong) == proven

    def test_a_wheel_that_rotted_is_found_though_its_layer_is_known(self, wheel: Path, store: Store) -> None:
        proven = known_of(splice([wheel], store))
        package = locked(wheel)
        data = bytearray(wheel.read_bytes())
        data[len(data) // 2] ^= 1
        wheel.write_bytes(data)
        layer = WheelLayer(component="python", wheels=(package,), python="3.13")
        with pytest.raises(DamagedDownloadError):
            splicing_of(layer, wheel, store, proven)

    def test_a_wheel_that_cannot_be_unpacked_safely_is_refused_all_the_same(
        self, store: Store, tmp_path: Path
    ) -> None:
        path = make_wheel(tmp_path, {"../outside.py": b""})
        claim = KnownLayer(
            key="0" * 64, digest="sha256:" + "1" * 64, diff_id="sha256:" + "1" * 64, size=1, unpacked=1
        )
        with pytest.raises(BuildError, match="leads out of its folder"):
            splice([path], store, known=claim)


def splicing_of(layer: WheelLayer, wheel: Path, store: Store, claim: KnownLayer) -> LayerRecord:
    from imagebuilder.layers.wheel import build_wheel_layer

    return build_wheel_layer(layer, {layer.wheels[0].sha256: wheel}, store, lambda _: None, claim)


class TestTheLock:
    def test_it_means_the_same_whatever_is_known(self, store: Store) -> None:
        plain = LockFile(sections=(samples.lock(),))
        made(plain.sections[0], store)
        learnt = known.learn(plain, store)
        assert learnt.sections[0].layers
        assert learnt.sections[0].format == locks.FORMAT
        assert learnt.checksum == plain.checksum
        assert learnt.sections[0].checksum == plain.sections[0].checksum
        assert plans.plan(RECIPE, learnt.sections[0], ()) == plans.plan(RECIPE, plain.sections[0], ())
        assert lockfile.loads(lockfile.dumps(learnt), "x.lock") == learnt
        assert learnt.sections[0].knowing(()) == plain.sections[0]

    def test_a_layer_is_a_line(self, store: Store) -> None:
        made(samples.lock(), store)
        text = lockfile.dumps(known.learn(LockFile(sections=(samples.lock(),)), store))
        assert len([line for line in text.splitlines() if '"diff_id"' in line]) == len(
            wheel_layers(samples.lock())
        )

    def test_sections_of_several_platforms_know_their_own(self, store: Store) -> None:
        other = samples.lock(architecture="arm64", wheels=(samples.wheel("numpy", "2.0"),))
        plain = LockFile(sections=(samples.lock(), other))
        made(other, store)
        learnt = known.learn(plain, store)
        assert [len(lock.layers) for lock in learnt.sections] == [0, 1]
        assert learnt.checksum == plain.checksum
        assert lockfile.loads(lockfile.dumps(learnt), "x.lock") == learnt

    def test_what_an_older_lock_knew_is_kept_as_far_as_it_still_counts(
        self, store: Store, tmp_path: Path
    ) -> None:
        old = LockFile(sections=(samples.lock(),))
        made(old.sections[0], store)
        old = known.learn(old, store)
        moved = samples.lock(
            wheels=(samples.wheel("numpy", "3.0"), samples.wheel("torch", "2.10.0", component="torch"))
        )
        learnt = known.learn(LockFile(sections=(moved,)), Store(tmp_path / "empty"), old)
        kept = {layer.key for layer in wheel_layers(moved)} & {
            layer.key for layer in wheel_layers(samples.lock())
        }
        assert {layer.key for layer in learnt.sections[0].layers} == kept
        assert kept

    def test_remembering_writes_it_once(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        locks.write(samples.lock(), locks.path_for(path))
        count = len(made(samples.lock(), store))
        assert known.remember(path, store) == count
        before = locks.path_for(path).stat()
        assert known.remember(path, store) == 0
        assert locks.path_for(path).stat().st_mtime_ns == before.st_mtime_ns
        assert len(locks.read(locks.path_for(path)).layers) == count


class TestDistrust:
    def plan(self, wheel: Path) -> Plan:
        lock = samples.lock(wheels=(locked(wheel),))
        return plans.plan(RECIPE, lock, ())

    def layer(self, plan: Plan) -> WheelLayer:
        return next(layer for layer in plan.layers if isinstance(layer, WheelLayer))

    def test_a_layer_that_is_what_its_record_says_stays(self, wheel: Path, store: Store) -> None:
        plan = self.plan(wheel)
        record = splice([wheel], store)
        store.put_layer(self.layer(plan).key, record)
        assert known.distrust(plan, store) == ()
        assert store.layer(self.layer(plan).key) == record

    @pytest.mark.parametrize("what", ["diff_id", "bytes"])
    def test_a_layer_that_is_not_is_forgotten(self, wheel: Path, store: Store, what: str) -> None:
        plan = self.plan(wheel)
        record = splice([wheel], store)
        if what == "bytes":
            blob = store.blob(record.digest)
            blob.chmod(0o644)
            blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
        else:
            record = replace(record, diff_id="sha256:" + "3" * 64)
        store.put_layer(self.layer(plan).key, record)
        assert known.distrust(plan, store) == (self.layer(plan).title,)
        assert store.layer(self.layer(plan).key) is None
