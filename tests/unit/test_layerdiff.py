"""Two layers compared: every file that differs is named, with what it is about it."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.errors import StoreError
from imagebuilder.workflow import layerdiff
from imagebuilder.workflow.layerdiff import FileDifference


def member(path: str, content: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(path)
    found.size = len(content)
    for name, value in attributes.items():
        setattr(found, name, value)
    return found, content


def layer(path: Path, *members: tuple[tarfile.TarInfo, bytes], level: int = 6) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(buffer.getvalue(), level, mtime=0))
    return path


def difference(tmp_path: Path, one: Any, other: Any) -> FileDifference:
    """Compare layers of two files, of which the second is different."""
    same = member("./etc/passwd", b"root:x:0:0\n")
    found = layerdiff.compare(layer(tmp_path / "1", same, one), layer(tmp_path / "2", same, other))
    assert len(found.files) == 1
    return found.files[0]


def test_equal_layers_have_no_difference(tmp_path: Path) -> None:
    one = layer(tmp_path / "1", member("./a", b"x" * 9000))
    found = layerdiff.compare(one, layer(tmp_path / "2", member("./a", b"x" * 9000), level=1))
    assert found.files == ()
    assert found.about == "the same tar, compressed to other bytes"


@pytest.mark.parametrize(
    ("what", "one", "other", "values"),
    [
        ("mode", {"mode": 0o644}, {"mode": 0o4755}, ("0644", "4755")),
        ("owner", {"uid": 0}, {"uid": 1000}, ("0:0", "1000:0")),
        ("owner", {}, {"uname": "me"}, ("0:0", "0:0 me:")),
        ("time", {"mtime": 0}, {"mtime": 1_700_000_000}, ("0", "1700000000")),
        (
            "target",
            {"type": tarfile.SYMTYPE, "linkname": "a"},
            {"type": tarfile.SYMTYPE, "linkname": "b"},
            ("a", "b"),
        ),
        (
            "attributes",
            {},
            {"pax_headers": {"SCHILY.xattr.security.capability": "x"}},
            ("", "SCHILY.xattr.security.capability=x"),
        ),
    ],
)
def test_what_differs_about_a_file_is_said(
    what: str, one: dict[str, Any], other: dict[str, Any], values: tuple[str, str], tmp_path: Path
) -> None:
    found = difference(tmp_path, member("./f", **one), member("./f", **other))
    assert (found.path, found.what) == ("f", (what,))
    assert (*found.first, *found.second) == values


def test_another_kind_of_file_is_said(tmp_path: Path) -> None:
    found = difference(tmp_path, member("./f", b""), member("./f", type=tarfile.DIRTYPE))
    assert found.what[0] == "kind"
    assert (found.first[0], found.second[0]) == ("file", "folder")


def test_the_first_line_that_differs_is_shown(tmp_path: Path) -> None:
    found = difference(
        tmp_path,
        member("./log", b"one\ntwo at 12:00\nthree\n"),
        member("./log", b"one\ntwo at 12:01\nthree\n"),
    )
    assert found.what == ("content",)
    assert (found.line, found.first_line, found.second_line) == (2, "two at 12:00", "two at 12:01")


def test_a_text_that_ends_earlier_differs_where_it_ends(tmp_path: Path) -> None:
    found = difference(tmp_path, member("./log", b"one\n"), member("./log", b"one\nmore\n"))
    assert (found.line, found.first_line, found.second_line) == (2, "", "more")


def test_what_is_no_text_has_no_lines(tmp_path: Path) -> None:
    found = difference(tmp_path, member("./bin", b"\0\1"), member("./bin", b"\0\2"))
    assert found.what == ("content",)
    assert found.line == 0


def test_no_line_is_shown_of_what_not_everybody_may_read(tmp_path: Path) -> None:
    found = difference(
        tmp_path,
        member("./root/key", b"secret one\n", mode=0o600),
        member("./root/key", b"other\n", mode=0o600),
    )
    assert found.what == ("content",)
    assert (found.line, found.first_line, found.second_line) == (0, "", "")


def test_files_that_only_one_has_are_missing_in_the_other(tmp_path: Path) -> None:
    one = layer(tmp_path / "1", member("./a"), member("./only-here"))
    other = layer(tmp_path / "2", member("./a"), member("./there", type=tarfile.DIRTYPE))
    found = layerdiff.compare(one, other).files
    assert [(each.path, each.what, each.first, each.second) for each in found] == [
        ("only-here", ("missing",), ("file",), ("nothing",)),
        ("there", ("missing",), ("nothing",), ("folder",)),
    ]


def test_another_order_is_a_difference_of_the_file_that_moved(tmp_path: Path) -> None:
    a, b, c = (member(f"./{name}") for name in "abc")
    found = layerdiff.compare(layer(tmp_path / "1", a, b, c), layer(tmp_path / "2", b, c, a)).files
    assert [(each.path, each.what) for each in found] == [("b", ("order",)), ("c", ("order",))]


def test_a_path_that_is_there_twice_is_compared_twice(tmp_path: Path) -> None:
    twice = (member("./a", b"1"), member("./a", b"2"))
    changed = (member("./a", b"1"), member("./a", b"3"))
    found = layerdiff.compare(layer(tmp_path / "1", *twice), layer(tmp_path / "2", *changed)).files
    assert [each.what for each in found] == [("content",)]


def test_headers_that_differ_without_a_file_that_does_are_told_by_their_place(tmp_path: Path) -> None:
    one = layer(tmp_path / "1", member("./a", b"x"))
    data = bytearray(gzip.decompress(one.read_bytes()))
    data[600] = 1  # after the one byte of content, where its block is filled up
    (tmp_path / "2").write_bytes(gzip.compress(bytes(data)))
    found = layerdiff.compare(one, tmp_path / "2")
    assert found.files == ()
    assert "differ at byte 600" in found.about


def test_a_blob_that_is_no_layer_is_said(tmp_path: Path) -> None:
    good = layer(tmp_path / "1", member("./a"))
    (tmp_path / "2").write_bytes(b"\x1f\x8b" + b"nonsense" * 100)
    with pytest.raises(StoreError, match="cannot be read for the comparison"):
        layerdiff.compare(good, tmp_path / "2")
