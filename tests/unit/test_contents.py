"""What an image's files are once its layers are applied: image-spec, layer.md."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from imagebuilder.errors import StoreError
from tests.support import contents
from tests.support.contents import Item

Row = tuple[str, str, int]  # path, what it holds or where it leads, mode


def layer(place: Path, *rows: Row, links: dict[str, str] | None = None, packed: bool = False) -> Path:
    """Write a layer: a path with a slash at its end is a folder, `-> x` is a symbolic link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, text, mode in rows:
            entry = tarfile.TarInfo(path)
            entry.mode, entry.uid, entry.gid = mode, 7, 8
            if path.endswith("/"):
                entry.type = tarfile.DIRTYPE
            elif text.startswith("-> "):
                entry.type, entry.linkname = tarfile.SYMTYPE, text[3:]
            else:
                entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for path, target in (links or {}).items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.LNKTYPE, target
            tar.addfile(entry)
    data = stream.getvalue()
    place.write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]) if packed else data)
    return place


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_every_property_of_every_kind(tmp_path: Path) -> None:
    rows = (("./etc/", "", 0o750), ("./etc/motd", "hello", 0o4755), ("etc/x", "-> ../y", 0o777))
    for packed in (False, True):
        blob = layer(tmp_path / f"layer{packed}", *rows, links={"etc/same": "./etc/motd"}, packed=packed)
        found = contents.of_layers([blob])
        file = Item(kind="file", mode=0o4755, owner=(7, 8), sha256=sha("hello"))
        assert found == {
            "etc": Item(kind="folder", mode=0o750, owner=(7, 8)),
            "etc/motd": file,
            "etc/same": file,
            "etc/x": Item(kind="link", mode=0, owner=(7, 8), target="../y"),
        }


def test_a_later_layer_wins_and_removes(tmp_path: Path) -> None:
    below = layer(
        tmp_path / "1", ("a/", "", 0o755), ("a/x", "1", 0o644), ("a/y", "1", 0o644), ("b/", "", 0o755),
        ("b/deep/", "", 0o755), ("b/deep/z", "1", 0o644), ("c/", "", 0o755), ("c/old", "1", 0o644),
        ("d/", "", 0o755), ("d/in", "1", 0o644),
    )  # fmt: skip
    above = layer(
        tmp_path / "2", ("a/x", "2", 0o600), ("a/.wh.y", "", 0o644), ("b/.wh.deep", "", 0o644),
        ("c/.wh..wh..opq", "", 0o644), ("c/new", "2", 0o644), ("d", "-> a", 0o777),
    )  # fmt: skip
    found = contents.of_layers([below, above])
    assert sorted(found) == ["a", "a/x", "b", "c", "c/new", "d"]
    assert found["a/x"] == Item(kind="file", mode=0o600, owner=(7, 8), sha256=sha("2"))
    assert found["d"].kind == "link"


def test_what_a_layer_removes_is_of_those_below_whatever_the_order(tmp_path: Path) -> None:
    below = layer(tmp_path / "1", ("c/", "", 0o755), ("c/old", "1", 0o644))
    above = layer(tmp_path / "2", ("c/new", "2", 0o644), ("c/.wh..wh..opq", "", 0o644))
    assert sorted(contents.of_layers([below, above])) == ["c", "c/new"]


def test_a_comparison_names_paths_and_properties(tmp_path: Path) -> None:
    before = contents.of_layers([layer(tmp_path / "1", ("a", "1", 0o644), ("b", "1", 0o644), ("c", "", 0))])
    after = contents.of_layers([layer(tmp_path / "2", ("a", "2", 0o600), ("b", "1", 0o644), ("d", "", 0))])
    found = [(change.path, change.what) for change in contents.compare(before, after)]
    assert found == [("a", ("mode", "sha256")), ("c", ("presence",)), ("d", ("presence",))]
    assert contents.compare(before, before) == ()


def test_what_is_no_layer_is_said(tmp_path: Path) -> None:
    for name, data in (("text", b"no tar at all" * 100), ("torn", gzip.compress(b"x" * 9000)[:30])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(StoreError, match="cannot be read"):
            contents.of_layers([tmp_path / name])
    lost = layer(tmp_path / "lost", links={"a": "b"})
    with pytest.raises(StoreError, match="hard link to b"):
        contents.of_layers([lost])
