"""A system's tar in parts: each file is in one, and together they are the tar."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from imagebuilder.core.streams import IterReader
from imagebuilder.errors import BuildError
from imagebuilder.layers.system.split import split
from imagebuilder.plan import STATE
from tests.support.parts import entries_of, union_of

CAPABILITY = {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02"}
INFO = "var/lib/dpkg/info"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One entry of a made-up root; `to` is a link's target."""

    path: str
    content: bytes = b""
    to: str = ""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    owner: int = 0
    extra: Mapping[str, str] | None = None


def folder(path: str, mode: int = 0o755, owner: int = 0) -> Item:
    return Item(path=path, kind=tarfile.DIRTYPE, mode=mode, owner=owner)


def link(path: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Item:
    return Item(path=path, to=to, kind=kind, mode=0o777)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def package(name: str, paths: tuple[str, ...], sums: Mapping[str, bytes]) -> tuple[Item, ...]:
    listed = "".join(f"/{path}\n" for path in (".", *paths)).encode()
    said = "".join(f"{md5(content)}  {path}\n" for path, content in sums.items()).encode()
    return Item(path=f"{INFO}/{name}.list", content=listed), Item(path=f"{INFO}/{name}.md5sums", content=said)


def root(*items: Item) -> io.BytesIO:
    """Write a tar as mmdebstrap's is: sorted, with the root itself, and all folders that are needed."""
    paths = {item.path: item for item in items}
    for path in list(paths):
        while path := path.rpartition("/")[0]:
            paths.setdefault(path, folder(path))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for item in (folder(""), *(paths[path] for path in sorted(paths))):
            entry = tarfile.TarInfo(f"./{item.path}")
            entry.type, entry.mode, entry.uid, entry.size = (
                item.kind,
                item.mode,
                item.owner,
                len(item.content),
            )
            entry.linkname, entry.pax_headers = item.to, dict(item.extra or {})
            tar.addfile(entry, io.BytesIO(item.content))
    out.seek(0)
    return out


def parts(tar: io.BytesIO, homes: Mapping[str, str]) -> dict[str, bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(tar.getvalue())
        return {name: b"".join(_pieces(part)) for name, part in split(file, homes).items()}


def _pieces(part: IterReader) -> Iterator[bytes]:
    while piece := part.read(1000):
        yield piece


def names(tar: bytes, *, folders: bool = False) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return [entry.name.removeprefix("./") for entry in opened if folders or not entry.isdir()]


TOOL = ("usr/bin/tool", "usr/bin/tool2", "usr/bin/alias", "etc/tool.conf", "etc/tool.d", "var/tool")
MODULES = {"usr/lib/mod.py": b"m", "usr/lib/changed.py": b"c"}
ROOT = (
    *package("tool:amd64", ("usr/bin", *TOOL), {"usr/bin/tool": b"tool", "usr/bin/tool2": b"tool"}),
    *package("mod", tuple(MODULES), MODULES),
    Item(path="usr/bin/tool", content=b"tool", mode=0o4755, extra=CAPABILITY),
    link("usr/bin/tool2", "./usr/bin/tool", tarfile.LNKTYPE),
    link("usr/bin/alias", "tool"),
    link("etc/alternatives/x", "/usr/bin/tool"),
    Item(path="etc/tool.conf", content=b"setting"),
    folder("etc/tool.d", 0o700, owner=33),
    folder("var/tool", 0o1777),
    folder("var/nobody"),
    Item(path="usr/lib/mod.py", content=b"m"),
    Item(path="usr/lib/__pycache__/mod.cpython-313.pyc", content=b"compiled"),
    Item(path="usr/lib/changed.py", content=b"C"),
    Item(path="usr/lib/__pycache__/changed.cpython-313.pyc", content=b"compiled"),
    Item(path="usr/lib/" + "long/" * 40 + "name", content=b"x" * 3000),
    Item(
        path="var/lib/dpkg/status",
        content=f"Package: tool\nConffiles:\n /etc/tool.conf {md5(b'setting')}\n\nPackage: mod\n".encode(),
    ),
)  # fmt: skip
HOMES = {"tool": "one", "mod": "two"}


def test_each_file_is_in_one_part_and_together_they_are_the_tar() -> None:
    tar = root(*ROOT)
    made = parts(tar, HOMES)
    files = sorted(name for part in made.values() for name in names(part))
    assert files == sorted(names(tar.getvalue()))
    assert union_of(map(entries_of, made.values())) == entries_of(tar.getvalue())


def test_a_file_is_with_its_package_as_long_as_it_is_what_that_brought() -> None:
    made = parts(root(*ROOT), HOMES)
    assert names(made["one"]) == [
        "etc/tool.conf",
        "usr/bin/alias",
        "usr/bin/tool",
        "usr/bin/tool2",
        f"{INFO}/tool:amd64.list",
        f"{INFO}/tool:amd64.md5sums",
    ]
    assert names(made["two"]) == [
        "usr/lib/__pycache__/mod.cpython-313.pyc",
        "usr/lib/mod.py",
        f"{INFO}/mod.list",
        f"{INFO}/mod.md5sums",
    ]
    assert {"etc/alternatives/x", "usr/lib/changed.py", "var/lib/dpkg/status"} <= set(names(made[STATE]))
    assert "usr/lib/__pycache__/changed.cpython-313.pyc" in names(made[STATE])


def test_folders_are_where_something_is_in_them_and_empty_ones_with_their_package() -> None:
    made = parts(root(*ROOT), HOMES)
    found = {name: set(names(part, folders=True)) for name, part in made.items()}
    assert "etc/tool.d" in found["one"] - found["two"] - found[STATE]
    assert "var/tool" in found["one"] - found[STATE]
    assert "var/nobody" in found[STATE] - found["one"]
    assert {"usr", "usr/lib"} <= found["two"] & found[STATE]
    assert "usr/lib" not in found["one"]


def test_another_package_changes_its_own_part_and_the_state() -> None:
    more = package("other", ("usr/bin/other",), {"usr/bin/other": b"o"})
    before = parts(root(*ROOT), {**HOMES, "other": "three"})
    after = parts(root(*ROOT, *more, Item(path="usr/bin/other", content=b"o")), {**HOMES, "other": "three"})
    assert [name for name in before if before[name] != after[name]] == ["three"]
    changed = [*ROOT[:-1], Item(path="var/lib/dpkg/status", content=b"another")]
    other = parts(root(*changed), {**HOMES, "other": "three"})
    # What was a package's own setting is nobody's when dpkg does not know it any more.
    assert [name for name in before if before[name] != other[name]] == ["one", STATE]


def test_names_of_one_file_stay_together() -> None:
    """A script may link a package's file to another name; and two groups may have one file."""
    link_to_tool = link("usr/two", "./usr/bin/tool", tarfile.LNKTYPE)
    second = package("two", ("usr/two",), {"usr/two": b"tool"})
    for items in ((link_to_tool, *second), (link_to_tool,)):
        tar = root(*ROOT, *items)
        made = parts(tar, {**HOMES, "two": "two"})
        assert {"usr/bin/tool", "usr/bin/tool2", items[0].path} <= set(names(made[STATE]))
        assert union_of(map(entries_of, made.values())) == entries_of(tar.getvalue())


def test_a_hard_link_to_a_link_is_with_it_and_one_to_nothing_is_refused() -> None:
    second = link("usr/bin/second", "./usr/bin/alias", tarfile.LNKTYPE)
    tar = root(*ROOT, second)
    made = parts(tar, HOMES)
    assert {"usr/bin/alias", "usr/bin/second"} <= set(names(made[STATE]))
    assert union_of(map(entries_of, made.values())) == entries_of(tar.getvalue())
    with pytest.raises(BuildError, match="usr/nothing"):
        parts(root(*ROOT, link("usr/x", "./usr/nothing", tarfile.LNKTYPE)), HOMES)


def test_paths_of_before_the_merge_of_usr_are_understood() -> None:
    items = (
        link("lib", "usr/lib"),
        *package("libc6:amd64", ("lib", "lib/libc.so", "usr/lib"), {"lib/libc.so": b"c"}),
        Item(path="usr/lib/libc.so", content=b"c"),
    )
    made = parts(root(*items), {"libc6": "base"})
    assert {"usr/lib/libc.so", "lib"} <= set(names(made["base"]))


def test_a_diverted_file_is_its_own_package_s() -> None:
    divert = b"/usr/bin/sh\n/usr/bin/sh.old\nnew\n"
    items = (
        *package("old", ("usr/bin/sh",), {"usr/bin/sh": b"old"}),
        *package("new", ("usr/bin/sh",), {"usr/bin/sh": b"new"}),
        Item(path="usr/bin/sh", content=b"new"),
        Item(path="usr/bin/sh.old", content=b"old"),
        Item(path="var/lib/dpkg/diversions", content=divert),
    )
    made = parts(root(*items), {"old": "one", "new": "two"})
    assert "usr/bin/sh.old" in names(made["one"])
    assert "usr/bin/sh" in names(made["two"])


def test_what_no_group_has_is_the_state() -> None:
    tar = root(*ROOT)
    made = parts(tar, {})
    assert list(made) == [STATE]
    assert entries_of(made[STATE]) == entries_of(tar.getvalue())


def test_a_tar_that_broke_off_is_refused() -> None:
    whole = root(*ROOT).getvalue()
    with pytest.raises(BuildError, match=r"cannot be read|broke off"):
        parts(io.BytesIO(whole[: whole.index(b"x" * 3000) + 100]), HOMES)
    with pytest.raises(BuildError, match="cannot be read"):
        parts(io.BytesIO(b"no tar" * 1000), HOMES)
