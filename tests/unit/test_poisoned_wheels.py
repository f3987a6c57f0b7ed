"""A wheel that hides a tar in a deflate stream, and a lock that knows the digests which that would give.

A layer of wheels is made of their deflate streams as they stand, between gzip headers. A stream that goes on
after its end with a gzip trailer and another gzip member is clean for zipfile and RECORD, which stop there,
and holds further tar entries for whoever unpacks the layer.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core.progress import LineProgress, no_advance
from imagebuilder.engines import embedded
from imagebuilder.engines.embedded import BuildContext
from imagebuilder.errors import BuildError, LockError
from imagebuilder.host.site import Site
from imagebuilder.layers import archive, hints
from imagebuilder.layers.wheels import members, splice
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import KnownLayer, Lock
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.store import Store, cache
from tests.support.wheels import SITE, locked, make_wheel, read_tar
from tests.support.wheels import splice as spliced
from tests.unit import samples

MEMBER = "demo/data.bin"
CONTENT = b"value = 1\n" * 50
RECIPE = samples.recipe()


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def smuggled(content: bytes) -> bytes:
    """Compress some content so that it unpacks to itself, and in a gzip file to more tar entries too."""
    ended = archive.gzip_trailer(zlib.crc32(content), len(content)) + archive.GZIP_HEADER
    preload = b"/evil.so\n".ljust(512)
    hidden = b"".join(
        (
            archive.padding(len(content)),
            archive.regular("usr/bin/setuid", 0o4755, 3) + b"evl" + archive.padding(3),
            archive.regular("etc/ld.so.preload", 0o644, len(preload)) + preload,
            archive.regular("root/.ssh/authorized_keys", 0o600, 0),
            archive.regular("etc/.wh.shadow", 0o644, 0),
            # What the splicer writes after the stream is the trailer of this file's content.
            archive.regular("opt/rest", 0o644, len(content)),
        )
    )
    second = deflated(hidden) + archive.gzip_trailer(zlib.crc32(hidden), len(hidden)) + archive.GZIP_HEADER
    return deflated(content) + ended + second + deflated(content)


def poisoned(folder: Path) -> Path:
    """Make a wheel with a stream that goes on after its end; zipfile and RECORD see nothing of that."""
    path = make_wheel(folder, {"demo/__init__.py": b"", MEMBER: CONTENT})
    data, grown = path.read_bytes(), smuggled(CONTENT)
    local = data.index(b"PK\x03\x04", 1)
    start = local + 30 + len(MEMBER)
    old = struct.unpack_from("<I", data, local + 18)[0]
    assert zlib.decompress(data[start : start + old], -15) == CONTENT
    end = len(data) - 22
    directory = struct.unpack_from("<I", data, end + 16)[0]
    shift = len(grown) - old
    new = bytearray(data[:start] + grown + data[start + old :])
    struct.pack_into("<I", new, local + 18, len(grown))
    at, number = directory + shift, 0
    while new[at : at + 4] == b"PK\x01\x02":
        name, extra, comment = struct.unpack_from("<HHH", new, at + 28)
        if number == 1:
            struct.pack_into("<I", new, at + 20, len(grown))
        if number > 1:
            struct.pack_into("<I", new, at + 42, struct.unpack_from("<I", new, at + 42)[0] + shift)
        at, number = at + 46 + name + extra + comment, number + 1
    struct.pack_into("<I", new, at + 16, directory + shift)
    path.write_bytes(new)
    return path


class Lenient(members.Unpacking):
    """Unpacks as zipfile does: what follows the end of a stream is nobody's."""

    def __init__(self, member: members.Member) -> None:
        super().__init__(member)
        self._own = zlib.decompressobj(-15)
        self._plain = member.stored

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data if self._plain else self._own.decompress(data)

    def finish(self) -> None:
        """Take it as it is."""


def claim_of(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> KnownLayer:
    """Say what a layer of a poisoned wheel gives where nobody looks inside, as the attacker's lock does."""
    store = Store(folder / "attacker")
    with monkeypatch.context() as patched:
        patched.setattr(splice, "Unpacking", Lenient)
        record = spliced([path], store)
    tar = gzip.decompress(store.blob(record.digest).read_bytes())
    return KnownLayer(
        key=layer_of(path).key,
        digest=record.digest,
        diff_id=f"sha256:{hashlib.sha256(tar).hexdigest()}",
        size=record.size,
        unpacked=len(tar),
    )


def layer_of(path: Path) -> WheelLayer:
    return WheelLayer(component="python", wheels=(locked(path),), python=samples.lock().python)


def keys_of(path: Path) -> tuple[tuple[str, ...], ...]:
    return ((layer_of(path).key,),)


def lock_of(path: Path, *claims: KnownLayer) -> Lock:
    return samples.lock(wheels=(locked(path),)).knowing(claims)


def plan_of(lock: Lock) -> Plan:
    """Plan an image of wheels alone: no system has to be made for it."""
    plan = plans.plan(select(RECIPE), lock, ())
    return dataclasses.replace(
        plan, layers=tuple(layer for layer in plan.layers if isinstance(layer, WheelLayer))
    )


def build(lock: Lock, path: Path, store: Store) -> embedded.Built:
    place = store.download(lock.wheels[0].sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)
    progress = LineProgress(io.StringIO())
    return embedded.build(plan_of(lock), BuildContext(lock=lock, store=store, site=Site(), progress=progress))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_zipfile_sees_a_clean_wheel_and_gzip_a_hostile_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    path = poisoned(tmp_path)
    with zipfile.ZipFile(path) as archive_:
        assert archive_.testzip() is None
        assert archive_.read(MEMBER) == CONTENT
    claim = claim_of(path, tmp_path, monkeypatch)
    blob = Store(tmp_path / "attacker").blob(claim.digest)
    entries = read_tar(gzip.decompress(blob.read_bytes()))
    assert entries["usr/bin/setuid"].mode == 0o4755
    assert {"etc/ld.so.preload", "root/.ssh/authorized_keys", "etc/.wh.shadow"} <= set(entries)
    assert entries[f"{SITE}/{MEMBER}"].data == CONTENT


def test_a_lock_that_knows_the_poisoned_layer_is_of_no_use(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = poisoned(tmp_path)
    lock = lock_of(path, claim_of(path, tmp_path, monkeypatch))
    with pytest.raises(BuildError) as refused:
        build(lock, path, store)
    assert str(refused.value).startswith(
        f"{path.name}: `{MEMBER}` has bytes after the end of its compressed data"
    )
    # Nothing of it is left for a lock that names the same wheel.
    assert store.layer(layer_of(path).key) is None
    assert not list(store.root.glob("blobs/sha256/*"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"diff_id": "sha256:" + "3" * 64}, "give the diffID sha256:"),
        ({"digest": "sha256:" + "3" * 64}, "give the digest sha256:"),
        ({"unpacked": 7}, "but the lock says 7"),
        ({"toc": ""}, "but the lock says none"),
    ],
)
def test_what_a_lock_has_wrong_ends_there(
    tmp_path: Path, store: Store, change: dict[str, object], words: str
) -> None:
    """Neither the store nor another lock gets it; and `imagebuilder lock` writes the true values."""
    path = make_wheel(tmp_path, {MEMBER: CONTENT})
    key = layer_of(path).key
    true = spliced([path], Store(tmp_path / "other"), python=samples.lock().python)
    honest = KnownLayer(
        key=key,
        digest=true.digest,
        diff_id=true.diff_id,
        size=true.size,
        unpacked=true.unpacked,
        toc=true.toc,
    )
    wrong = lock_of(path, honest.model_copy(update=change))
    for _ in range(2):  # made, and found in the store
        with pytest.raises(LockError, match=words) as refused:
            build(wrong, path, store)
        assert f"{wrong.recipe}.lock: layers: {key}" in str(refused.value)
        assert store.layer(key) == true
    assert not store.image_names()
    for lock in (lock_of(path), wrong):
        assert hints.learn(LockFile(sections=(lock,)), keys_of(path), store).sections[0].layers == (honest,)
    build(lock_of(path, honest), path, store)


def test_remembering_after_a_build_writes_what_the_store_proved(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {MEMBER: CONTENT})
    build(lock_of(path), path, store)
    recipe = tmp_path / "x.yaml"
    file = LockFile(sections=(lock_of(path),))
    lockfile.write(file, locks.path_for(recipe))
    assert hints.remember(recipe, file, keys_of(path), store) == 1
    record = store.layer(layer_of(path).key)
    assert record is not None
    assert lockfile.read(locks.path_for(recipe)).sections[0].layers[0].diff_id == record.diff_id


def test_cache_verify_unpacks_every_layer(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {MEMBER: CONTENT})
    record = spliced([path], store)
    store.put_layer("1" * 64, record)
    assert cache.verify(store, no_advance) == ()
    store.put_layer("2" * 64, dataclasses.replace(record, diff_id="sha256:" + "3" * 64))
    store.put_layer("4" * 64, dataclasses.replace(record, unpacked=7))
    (one, two) = cache.verify(store, no_advance)
    assert (one.path, two.path) == (store.layer_path("2" * 64), store.layer_path("4" * 64))
    assert one.reason == f"says another diffID than its blob has: {record.diff_id}"
    assert two.reason == f"says another size than its blob unpacks to: {record.unpacked}"
    cache.verify(store, no_advance, remove=True)
    assert store.layer("1" * 64) == record
    assert store.layer_keys() == ("1" * 64,)
