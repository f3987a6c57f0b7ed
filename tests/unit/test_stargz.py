from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import pytest

from imagebuilder.core.progress import no_advance
from imagebuilder.errors import LockError
from imagebuilder.layers import archive
from imagebuilder.layers.hints import require_true_tables
from imagebuilder.layers.stargz import compress_tar, true_table
from imagebuilder.store import Store
from tests.support.wheels import by_table, dice, make_wheel, read_tar, splice, unpack, write_zip

FILES = {
    "demo/__init__.py": b"",
    "demo/a.py": b"a = 1\n" * 40,
    "demo/b.bin": dice(2).randbytes(100_000),
}


class _Dribble(io.BytesIO):
    """A stream that gives little at a time, as pipes do."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        return super().read(min(size, 77_777))


def test_compressing_a_tar(tmp_path: Path) -> None:
    store = Store(tmp_path)
    data = dice(1).randbytes(1_500_000) + bytes(1_700_001)
    tar = archive.regular("f", 0o644, len(data)) + data + archive.padding(len(data)) + archive.TAR_END
    counts: list[int] = []
    record = compress_tar(io.BytesIO(tar), store, counts.append)
    assert unpack(record, store)["f"].data == data
    assert sum(counts) == len(tar)
    assert record.size < len(tar) * 0.6
    # However the bytes arrive, the layer is the same.
    assert compress_tar(_Dribble(tar), store, no_advance) == record


def test_readers_of_tars_see_neither_table_nor_landmark(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = splice([make_wheel(tmp_path, FILES)], store)
    blob = store.blob(record.digest).read_bytes()
    assert {path.partition("/")[0] for path in read_tar(gzip.decompress(blob))} == {"opt"}
    assert b"stargz.index.json" in gzip.decompress(blob)
    assert by_table(blob, record.toc) == unpack(record, store)


def test_a_table_has_every_kind_of_entry(tmp_path: Path) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as writer:
        for name, kind, more in (
            ("./", tarfile.DIRTYPE, {"mode": 0o755}),
            ("./bin", tarfile.DIRTYPE, {"mode": 0o1777, "mtime": 5}),
            ("./bin/ping", tarfile.REGTYPE, {"mode": 0o4755, "size": 3, "uid": 7, "gid": 8}),
            ("./bin/again", tarfile.LNKTYPE, {"linkname": "./bin/ping"}),
            ("./bin/sh", tarfile.SYMTYPE, {"linkname": "./dash"}),
            ("./bin/.wh.gone", tarfile.REGTYPE, {}),
            ("./null", tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
            ("./pipe", tarfile.FIFOTYPE, {}),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            for key, value in more.items():
                setattr(info, key, value)
            if info.size:
                info.pax_headers = {"SCHILY.xattr.security.capability": "cap"}
            writer.addfile(info, io.BytesIO(b"png"))
    tar.seek(0)
    store = Store(tmp_path)
    record = compress_tar(tar, store, no_advance)
    assert true_table(store.blob(record.digest)) == record.toc
    rows = {row["name"]: row for row in _table(store.blob(record.digest).read_bytes())["entries"]}
    assert list(rows) == [
        *("./", "bin/", "bin/ping", "bin/again", "bin/sh", "bin/.wh.gone", "null", "pipe"),
        ".no.prefetch.landmark",
    ]
    assert (rows["bin/"]["mode"], rows["bin/"]["modtime"]) == (0o1777, "1970-01-01T00:00:05Z")
    ping = rows["bin/ping"]
    assert (ping["mode"], ping["uid"], ping["gid"], ping["size"]) == (0o4755, 7, 8, 3)
    assert (ping["UID"], ping["GID"], rows["bin/"]["ModTime"]) == (7, 8, rows["bin/"]["modtime"])
    assert ping["xattrs"] == {"security.capability": "Y2Fw"}
    assert (rows["bin/again"]["type"], rows["bin/again"]["linkName"]) == ("hardlink", "bin/ping")
    assert (rows["bin/sh"]["type"], rows["bin/sh"]["linkName"]) == ("symlink", "./dash")
    assert "offset" not in rows["bin/.wh.gone"]
    assert (rows["null"]["type"], rows["null"]["devMajor"], rows["null"]["devMinor"]) == ("char", 1, 3)
    assert rows["pipe"]["type"] == "fifo"


def test_a_name_that_json_cannot_hold_leaves_a_layer_without_a_table(tmp_path: Path) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.GNU_FORMAT) as writer:
        writer.addfile(tarfile.TarInfo("caf\udce9"))
    tar.seek(0)
    store = Store(tmp_path)
    record = compress_tar(tar, store, no_advance)
    assert record.toc == true_table(store.blob(record.digest)) == ""


def test_hashes_that_record_lacks_are_computed(tmp_path: Path) -> None:
    files = {**FILES, "demo/unlisted.py": b"x = 1\n"}
    wheel = make_wheel(tmp_path, files)
    listed = zipfile.ZipFile(wheel)
    contents = {name: listed.read(name) for name in listed.namelist()}
    record = "demo-1.0.dist-info/RECORD"
    sha512 = base64.urlsafe_b64encode(hashlib.sha512(FILES["demo/a.py"]).digest()).rstrip(b"=").decode()
    contents[record] = f"demo/a.py,sha512={sha512},\n".encode()
    store = Store(tmp_path)
    made = splice([write_zip(wheel, contents)], store)
    assert made.toc
    unpack(made, store)  # holds the table to the tar


LIES: dict[str, Callable[[bytes], bytes]] = {
    "another file's content": lambda text: text.replace(*_offsets(text)),
    "another mode": lambda text: text.replace(b'"mode":436', b'"mode":511', 1),
    "a file more": lambda text: text.replace(
        b'{"name":"opt/"', b'{"name":"evil","type":"reg"},{"name":"opt/"'
    ),
    "a file less": lambda text: text.replace(
        text[text.index(b'{"name":"opt/"') : text.index(b'{"name":"opt/venv/"')], b""
    ),
    "other spelling": lambda text: text.replace(b'{"version":1', b'{ "version":1'),
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_table_is_not_believed(tmp_path: Path, lie: str) -> None:
    store = Store(tmp_path)
    record = splice([make_wheel(tmp_path, FILES)], store)
    blob = store.blob(record.digest).read_bytes()
    place = int(blob[-35:-19], 16)
    text = json.dumps(_table(blob), separators=(",", ":")).encode()
    said = LIES[lie](text)
    assert said != text
    data = archive.regular("stargz.index.json", 0o444, len(said)) + said + archive.padding(len(said))
    forged = tmp_path / "forged"
    forged.write_bytes(blob[:place] + archive.packed_member(data + archive.TAR_END) + blob[-51:])
    assert (
        gzip.decompress(forged.read_bytes())[: record.unpacked // 2]
        == gzip.decompress(blob)[: record.unpacked // 2]
    )
    assert true_table(forged) == ""
    # A hostile lock and a cache name the forged layer and its own table.
    with store.writer() as writer:
        writer.write(forged.read_bytes())
        digest, size = writer.commit()
    toc = f"sha256:{hashlib.sha256(said).hexdigest()}"
    hostile = dataclasses.replace(record, digest=digest, size=size, toc=toc)
    with pytest.raises(LockError, match=rf"layer {digest} is not what its tar gives"):
        require_true_tables([record, hostile], store)
    assert not store.has_blob(digest)
    require_true_tables([record, hostile], store)  # the other one is not here
    assert store.has_blob(record.digest)


@pytest.mark.parametrize("keep", [0, 1, 51, 500, -1, -51, -60])
def test_a_layer_that_is_cut_off_has_no_table(tmp_path: Path, keep: int) -> None:
    store = Store(tmp_path)
    record = splice([make_wheel(tmp_path, FILES)], store)
    cut = tmp_path / "cut"
    cut.write_bytes(store.blob(record.digest).read_bytes()[:keep])
    assert true_table(cut) == ""


def test_a_second_footer_or_table_is_not_believed(tmp_path: Path) -> None:
    """What another reader takes for the table would be another one."""
    store = Store(tmp_path)
    blob = store.blob(splice([make_wheel(tmp_path, FILES)], store).digest).read_bytes()
    place = int(blob[-35:-19], 16)
    for more in (blob[place:], archive.packed_member(b"x"), b"x"):
        forged = tmp_path / "forged"
        forged.write_bytes(blob + more)
        assert true_table(forged) == ""


def test_a_path_that_occurs_twice_has_no_table(tmp_path: Path) -> None:
    """Readers of tars take the last entry, readers of tables may take the first."""
    tar = b"".join(archive.regular("f", 0o644, 1) + data + archive.padding(1) for data in (b"1", b"2"))
    store = Store(tmp_path)
    record = compress_tar(io.BytesIO(tar + archive.TAR_END), store, no_advance)
    assert record.toc == true_table(store.blob(record.digest)) == ""


def _table(blob: bytes) -> Any:
    tail = zlib.decompressobj(31).decompress(blob[int(blob[-35:-19], 16) :])
    with tarfile.open(fileobj=io.BytesIO(tail)) as tar:
        return json.load(cast("IO[bytes]", tar.extractfile("stargz.index.json")))


def _offsets(text: bytes) -> tuple[bytes, bytes]:
    first, second = re.findall(rb'"offset":[0-9]+', text)[:2]
    return first, second
