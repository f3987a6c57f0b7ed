"""A root file system that a builder hands over: the same files give the same layer."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from imagebuilder import contents
from imagebuilder.errors import BuildError
from imagebuilder.layers.tarball import build_tar_layer
from imagebuilder.progress import no_advance
from imagebuilder.store import Store

# A capability as the kernel keeps it (linux/capability.h), with a byte that is no UTF-8.
CAPABILITY = b"\x01\x00\x00\x02\x80\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"


def tar(place: Path, *, seed: int, form: int) -> Path:
    """Write the same files with times, names of owners and attributes of the moment."""
    moment = random.Random(seed)  # noqa: S311  (nothing secret)
    long = "very/" * 60 + "long"
    with tarfile.open(place, "w", format=form) as archive:
        for path, kind in (("dev/", "5"), ("dev/null", "3"), ("proc/", "5"), ("usr/", "5"), ("usr/ping", "0"),
                           ("usr/pong", "1"), ("usr/link", "2"), (long, "0"), ("proc/1/", "5")):  # fmt: skip
            entry = tarfile.TarInfo(path)
            entry.type = kind.encode()
            entry.mtime = moment.randrange(1 << 31)
            entry.uname, entry.uid, entry.gid, entry.mode = f"u{seed}", 5, 6, 0o755
            data = path.encode() if kind == "0" else b""
            entry.size = len(data)
            entry.linkname = {"1": "usr/ping", "2": "../x"}.get(kind, "")
            if path == "usr/ping" and form == tarfile.PAX_FORMAT:
                text = CAPABILITY.decode("utf-8", "surrogateescape")
                entry.pax_headers = {
                    "SCHILY.xattr.security.capability": text, "SCHILY.xattr.security.selinux": f"s{seed}",
                }  # fmt: skip
            archive.addfile(entry, io.BytesIO(data))
    return place


def test_times_and_names_do_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    records = [
        build_tar_layer(tar(tmp_path / f"{seed}.tar", seed=seed, form=tarfile.PAX_FORMAT), store, no_advance)
        for seed in (1, 2)
    ]
    assert records[0] == records[1]
    found = contents.of_layers([store.blob(records[0].digest)])
    assert sorted(path for path in found if not path.startswith("very")) == [
        "proc", "usr", "usr/link", "usr/ping", "usr/pong"
    ]  # fmt: skip
    assert found["usr/ping"].capability.encode("utf-8", "surrogateescape") == CAPABILITY
    assert found["usr/pong"] == found["usr/ping"]
    assert found["usr/ping"].owner == (5, 6)
    assert found["usr/link"].target == "../x"


def test_long_names_of_either_format(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    record = build_tar_layer(tar(tmp_path / "g.tar", seed=3, form=tarfile.GNU_FORMAT), store, no_advance)
    assert any(path.endswith("very/long") for path in contents.of_layers([store.blob(record.digest)]))


@pytest.mark.parametrize("size", [0, 200, 2048, 2100])
def test_what_broke_off_is_no_layer(tmp_path: Path, size: int) -> None:
    whole = tar(tmp_path / "whole.tar", seed=1, form=tarfile.PAX_FORMAT)
    os.truncate(whole, size)
    store = Store(tmp_path / "store")
    with pytest.raises(BuildError, match="no whole root file system"):
        build_tar_layer(whole, store, no_advance)
    assert not [path for path in store.root.rglob("*") if path.is_file() and "locks" not in path.parts]
