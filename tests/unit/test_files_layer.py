from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.errors import BuildError
from imagebuilder.layers.files import build_files_layer
from imagebuilder.plan import Entry, FilesLayer
from imagebuilder.store import Store
from tests.support.wheels import Unpacked, unpack


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def file(path: str, text: str = "x") -> Entry:
    return Entry(path=path, kind="file", mode=0o644, text=text)


def folder(path: str, mode: int = 0o755) -> Entry:
    return Entry(path=path, kind="dir", mode=mode)


def link(path: str, target: str) -> Entry:
    return Entry(path=path, kind="link", mode=0o777, text=target)


def made(store: Store, *entries: Entry) -> dict[str, Unpacked]:
    return unpack(build_files_layer(FilesLayer(name="settings", entries=entries), store), store)


def test_files_folders_and_links(store: Store) -> None:
    layer = made(
        store,
        Entry(path="/usr/local/bin/run", kind="file", mode=0o755, text="#!/bin/sh\necho ü\n"),
        folder("/run/sshd"),
        link("/usr/local/bin/gcc", "/usr/bin/gcc-14"),
    )
    assert layer["usr/local/bin/run"] == Unpacked(
        kind="file", mode=0o755, data="#!/bin/sh\necho ü\n".encode()
    )
    assert layer["usr/local/bin/gcc"] == Unpacked(kind="link", mode=0o777, data=b"/usr/bin/gcc-14")
    assert layer["run/sshd"].kind == "dir"
    assert list(layer) == sorted(layer)


def test_folders_above_keep_the_modes_of_the_system(store: Store) -> None:
    layer = made(store, file("/root/.bashrc"), file("/tmp/x"), file("/etc/ssh/y"), file("/opt/venv/z"))
    modes = {path: entry.mode for path, entry in layer.items() if entry.kind == "dir"}
    assert modes == {
        "root": 0o700,
        "tmp": 0o1777,
        "etc": 0o755,
        "etc/ssh": 0o755,
        "opt": 0o755,
        "opt/venv": 0o775,
    }


def test_a_folder_that_is_given_has_the_mode_that_is_given(store: Store) -> None:
    layer = made(store, file("/home/trainer/x"), folder("/home"), folder("/home/trainer", 0o770))
    assert (layer["home"].mode, layer["home/trainer"].mode) == (0o755, 0o770)


def test_the_order_of_entries_changes_nothing(store: Store) -> None:
    entries = (file("/etc/b"), file("/etc/a"), link("/etc/c", "a"))
    one = build_files_layer(FilesLayer(name="x", entries=entries), store)
    assert one == build_files_layer(FilesLayer(name="y", entries=entries[::-1]), store)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((file("/etc/../x"),), "leads out of its folder"),
        ((file("//etc/x"),), "is an absolute path"),
        ((file("/etc/.wh.passwd"),), "would delete files"),
        ((file("/etc/x"), file("etc/x")), "occurs twice"),
        ((file("/etc/x"), file("/etc/x/y")), "is in `/etc/x`, which is a file in this layer"),
        ((link("/etc/x", "y"), file("/etc/x/y")), "is in `/etc/x`, which is a link in this layer"),
        ((file("/bin/x"),), "goes through a link of the system; write `/usr/bin/x`"),
        ((file("/var/run/x/y"),), "write `/run/x/y`"),
        ((folder("/lib64"),), "is a link of the system"),
        ((file("/opt/venv/lib64/x"),), "write `/opt/venv/lib/x`"),
        ((file("/home/trainer/.bashrc"),), "whose owner and mode are unknown"),
        ((file("/proc/x"),), "whose owner and mode are unknown"),
        ((link("/etc/x", ""),), "is a link without a printable target"),
        ((link("/etc/x", "a\nb"),), "is a link without a printable target"),
        ((link("/etc/x", "../../../etc/shadow"),), "leads out of the image"),
        ((Entry(path="/etc/x", kind="fifo", mode=0o644),), "has the unknown kind fifo; known kinds"),
        ((Entry(path="/etc/x", kind="file", mode=0o100644),), "has the mode 100644"),
        ((Entry(path="/etc/x", kind="dir", mode=0o755, text="x"),), "is a folder with content"),
    ],
)
def test_what_would_harm_the_image_is_refused(store: Store, entries: tuple[Entry, ...], message: str) -> None:
    with pytest.raises(BuildError) as caught:
        made(store, *entries)
    assert message in str(caught.value)
    assert "layer settings" in str(caught.value)
