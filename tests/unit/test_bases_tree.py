"""Layers laid over each other: what a file system would hold, without one."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuilder.bases import tree
from imagebuilder.bases.tree import Tree
from imagebuilder.errors import BuildError
from tests.support import standin_base

Files = Mapping[str, bytes | str | None]


def put(folder: Path, *layers: Files, kinds: str = "") -> list[tuple[Path, str]]:
    """Write layers: gzip, or as the letters say: zstd and plain."""
    made = []
    for number, files in enumerate(layers):
        kind = {"z": "zstd", "p": "tar"}.get(kinds[number : number + 1], "gzip")
        layer = standin_base.layer(standin_base.tar_of(files), kind)
        path = folder / str(number)
        path.write_bytes(layer.blob)
        made.append((path, layer.diff_id))
    return made


def merged(folder: Path, *layers: Files, kinds: str = "") -> Tree:
    return tree.read(put(folder, *layers, kinds=kinds), lambda _path: True, "x")


def paths(found: Tree) -> list[str]:
    return [path for path, node in found.walk() if not node.is_folder]


def test_a_later_layer_replaces_and_removes(tmp_path: Path) -> None:
    found = merged(
        tmp_path,
        {"./etc": None, "./etc/a": b"1", "etc/b": b"2", "opt/x/y": b"3"},
        {"etc/a": b"11", "etc/.wh.b": b"", ".wh.opt": b""},
    )
    assert paths(found) == ["etc/a"]
    assert found.text("etc/a") == "11"


def test_an_opaque_folder_keeps_what_its_own_layer_has(tmp_path: Path) -> None:
    found = merged(tmp_path, {"d/1": b"", "d/s/2": b""}, {"d/3": b"", "d/.wh..wh..opq": b"", "d/s/4": b""})
    assert paths(found) == ["d/3", "d/s/4"]


def test_a_whiteout_spares_what_its_own_layer_put_there(tmp_path: Path) -> None:
    assert paths(merged(tmp_path, {"a": b"1"}, {"a": b"2", ".wh.a": b""})) == ["a"]


def test_a_folder_becomes_a_file_and_a_file_a_folder(tmp_path: Path) -> None:
    found = merged(tmp_path, {"a/b": b"", "c": b""}, {"a": b"now a file", "c": None, "c/d": b""})
    assert paths(found) == ["a", "c/d"]


def test_paths_through_links_land_where_they_lead_and_never_outside(tmp_path: Path) -> None:
    found = merged(
        tmp_path,
        {"bin": "usr/bin", "usr/bin": None, "out": "/../../etc", "etc": None, "loop": "loop"},
        {"bin/sh": b"shell", "out/passwd": b"inside"},
    )
    assert paths(found) == ["bin", "etc/passwd", "loop", "out", "usr/bin/sh"]
    assert found.text("bin/sh") == "shell"
    assert found.find("loop") is None


def test_a_path_that_leads_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="leads out of the image"):
        merged(tmp_path, {"../etc/passwd": b""})


@pytest.mark.parametrize("kinds", ["", "z", "p"])
def test_each_packing_is_read_and_held_to_the_digest_of_its_tar(kinds: str, tmp_path: Path) -> None:
    ((path, diff_id),) = put(tmp_path, {"a": b"1"}, kinds=kinds)
    assert paths(tree.read([(path, diff_id)], lambda _path: False, "x")) == ["a"]
    with pytest.raises(BuildError, match="holds a tar with the digest"):
        tree.read([(path, f"sha256:{'0' * 64}")], lambda _path: False, "x")


@pytest.mark.parametrize("kinds", ["", "z"])
def test_a_layer_that_is_cut_short_is_told_as_damage(kinds: str, tmp_path: Path) -> None:
    ((path, diff_id),) = put(tmp_path, {"a": b"1" * 100_000, "b": b"2"}, kinds=kinds)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BuildError, match="x: "):
        tree.read([(path, diff_id)], lambda _path: False, "x")


def hard_linked(folder: Path) -> list[tuple[Path, str]]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a", "dev/null-like"):
            file = tarfile.TarInfo(name)
            file.size, file.mode, file.uid = 1, 0o4755, 7
            tar.addfile(file, io.BytesIO(b"A"))
        link = tarfile.TarInfo("b")
        link.type, link.linkname = tarfile.LNKTYPE, "a"
        tar.addfile(link)
        device = tarfile.TarInfo("device")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    layer = standin_base.layer(out.getvalue())
    (folder / "hard").write_bytes(layer.blob)
    return [(folder / "hard", layer.diff_id)]


def test_one_tar_of_all_layers_unpacks_to_the_same_files_and_follows_no_link(tmp_path: Path) -> None:
    layers = [
        *hard_linked(tmp_path),
        *put(tmp_path, {"a": b"new", "link": "/etc", "z/z": b"z"}),
    ]
    found = tree.read(layers, lambda _path: False, "x")
    out = io.BytesIO()
    seen = list(tree.write(found, [path for path, _ in layers], out, "x"))
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        members = tar.getmembers()
        kinds = [member.type for member in members]
        content = {member.name: tar.extractfile(member).read() for member in members if member.isreg()}  # type: ignore[union-attr]
    # `a` was replaced, so its other name keeps the old content; devices and mounted places are left out.
    assert content == {"b": b"A", "a": b"new", "z/z": b"z"}
    assert kinds == [b"5", b"0", b"0", b"0", b"2"]
    assert [member.name for member in members][-1] == "link"
    line = next(item for item in seen if item.path == "b")
    assert (line.mode, line.uid, line.kind, line.size) == (0o4755, 7, "file", 1)
    assert line.sha256 == hashlib.sha256(b"A").hexdigest()
    assert [item.path for item in seen] == [member.name for member in members]


def test_names_of_one_file_stay_one_file(tmp_path: Path) -> None:
    layers = hard_linked(tmp_path)
    out = io.BytesIO()
    list(tree.write(tree.read(layers, lambda _path: False, "x"), [layers[0][0]], out, "x"))
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert [(member.name, member.linkname) for member in tar] == [("a", ""), ("b", "a")]
