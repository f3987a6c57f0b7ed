from __future__ import annotations

import csv
import io
import stat
import zipfile
from pathlib import Path

import pytest

from imagebuilder.errors import BuildError
from imagebuilder.layers.wheels.collisions import check_collisions
from imagebuilder.store import Store
from tests.support.wheels import SITE, File, Unpacked, dice, encoded, make_wheel, splice, unpack


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def rows_of(data: bytes) -> dict[str, tuple[str, str]]:
    return {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(data.decode()))}


def install(store: Store, *wheels: Path) -> dict[str, Unpacked]:
    return unpack(splice(wheels, store), store)


def test_a_wheel_is_in_site_packages(tmp_path: Path, store: Store) -> None:
    source = b"print('hello')\n" * 200
    layer = install(store, make_wheel(tmp_path, {"demo/__init__.py": b"", "demo/main.py": source}))
    assert layer[f"{SITE}/demo/main.py"] == Unpacked(kind="file", mode=0o664, data=source)
    assert layer[f"{SITE}/demo/__init__.py"].data == b""
    assert layer[f"{SITE}/demo-1.0.dist-info/INSTALLER"].data == b"imagebuilder\n"


def test_compressed_bytes_are_those_of_the_wheel(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {"demo/data.bin": dice(1).randbytes(5000) * 20})
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("demo/data.bin")
    raw = path.read_bytes()
    start = info.header_offset + 30 + len(info.filename)
    record = splice([path], store)
    assert raw[start : start + info.compress_size] in store.blob(record.digest).read_bytes()


def test_every_folder_is_listed_and_group_writable_in_the_venv(tmp_path: Path, store: Store) -> None:
    layer = install(store, make_wheel(tmp_path, {"demo/sub/x.py": b"1"}))
    folders = {path: entry.mode for path, entry in layer.items() if entry.kind == "dir"}
    assert folders.pop("opt") == 0o755
    assert set(folders) == {
        "opt/venv",
        "opt/venv/lib",
        "opt/venv/lib/python3.13",
        SITE,
        f"{SITE}/demo",
        f"{SITE}/demo/sub",
        f"{SITE}/demo-1.0.dist-info",
    }
    assert set(folders.values()) == {0o775}


def test_parents_come_before_their_children_and_files_are_sorted(tmp_path: Path, store: Store) -> None:
    paths = list(install(store, make_wheel(tmp_path, {"b.py": b"1", "a/z.py": b"2", "a-b.py": b"3"})))
    files = [path for path in paths if not path.endswith(("opt", "venv", "lib", "a"))]
    assert [path for path in files if path.endswith(".py")] == [
        f"{SITE}/{x}" for x in ("a-b.py", "a/z.py", "b.py")
    ]
    assert all("/" not in path or path.rpartition("/")[0] in paths[: i + 1] for i, path in enumerate(paths))


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"demo/a.py": b"x" * 100_000})
    assert splice([wheel], Store(tmp_path / "one")) == splice([wheel], Store(tmp_path / "two"))


def test_modes_follow_the_zip(tmp_path: Path, store: Store) -> None:
    files = {"demo/tool": File(data=b"x", mode=stat.S_IFREG | 0o755), "demo/data": File(data=b"y", mode=0)}
    layer = install(store, make_wheel(tmp_path, files))
    assert (layer[f"{SITE}/demo/tool"].mode, layer[f"{SITE}/demo/data"].mode) == (0o775, 0o664)


def test_stored_entries_of_all_sizes(tmp_path: Path, store: Store) -> None:
    contents = {f"demo/{n}": dice(n).randbytes(n) for n in (0, 1, 511, 512, 65535, 65536, 2_500_000)}
    files = {name: File(data=data, method=zipfile.ZIP_STORED) for name, data in contents.items()}
    layer = install(store, make_wheel(tmp_path, files))
    assert {name: layer[f"{SITE}/{name}"].data for name in contents} == contents


def test_zip64_entries(tmp_path: Path, store: Store) -> None:
    layer = install(store, make_wheel(tmp_path, {"demo/big": File(data=b"z" * 9999, zip64=True)}))
    assert layer[f"{SITE}/demo/big"].data == b"z" * 9999


def test_long_and_unicode_paths(tmp_path: Path, store: Store) -> None:
    names = [
        "demo/" + "d" * 120 + "/" + "f" * 60,
        "demo/" + "f" * 200,
        "demo/größe.txt",
        "/".join(["x" * 50] * 9),
    ]
    layer = install(store, make_wheel(tmp_path, {name: name.encode() for name in names}))
    assert all(layer[f"{SITE}/{name}"].data == name.encode() for name in names)


def test_relocated_data(tmp_path: Path, store: Store) -> None:
    files = {
        "demo-1.0.data/purelib/pure.py": b"1",
        "demo-1.0.data/platlib/plat.so": b"2",
        "demo-1.0.data/headers/demo.h": b"3",
        "demo-1.0.data/data/share/man/demo.1": b"4",
        "demo-1.0.data/data/lib64/libdemo.so": b"5",
        "demo-1.0.data/scripts/demo-tool": b"#!/bin/sh\n",
    }
    layer = install(store, make_wheel(tmp_path, files))
    assert layer[f"{SITE}/pure.py"].data == b"1"
    assert layer[f"{SITE}/plat.so"].data == b"2"
    assert layer["opt/venv/include/site/python3.13/demo/demo.h"].data == b"3"
    assert layer["opt/venv/share/man/demo.1"].data == b"4"
    # lib64 is a link to lib in a venv.
    assert layer["opt/venv/lib/libdemo.so"].data == b"5"
    assert layer["opt/venv/bin/demo-tool"] == Unpacked(kind="file", mode=0o775, data=b"#!/bin/sh\n")
    assert not any(".data" in path for path in layer)


@pytest.mark.parametrize("first", [b"#!python", b"#!pythonw", b"#!python3 -E"])
def test_scripts_get_the_shebang_of_the_venv(tmp_path: Path, store: Store, first: bytes) -> None:
    layer = install(store, make_wheel(tmp_path, {"demo-1.0.data/scripts/run": first + b"\nimport demo\n"}))
    assert layer["opt/venv/bin/run"].data == b"#!/opt/venv/bin/python\nimport demo\n"


def test_entry_points_become_commands(tmp_path: Path, store: Store) -> None:
    text = (
        b"[console_scripts]\ndemo = demo.cli:main\ndemo-x = demo.cli:App.run [extra]\n\n"
        b"[gui_scripts]\ndemo-gui = demo.gui:start\n\n[other]\nx = not a command % at all\n"
    )
    layer = install(store, make_wheel(tmp_path, {"demo-1.0.dist-info/entry_points.txt": text}))
    commands = {path: entry for path, entry in layer.items() if path.startswith("opt/venv/bin/")}
    assert set(commands) == {f"opt/venv/bin/{name}" for name in ("demo", "demo-x", "demo-gui")}
    assert all(entry.mode == 0o775 for entry in commands.values())
    lines = commands["opt/venv/bin/demo-x"].data.decode().splitlines()
    assert lines[0] == "#!/opt/venv/bin/python"
    assert "from demo.cli import App" in lines
    assert "    sys.exit(App.run())" in lines


def test_an_entry_point_replaces_a_wrapper_of_its_name(tmp_path: Path, store: Store) -> None:
    files = {
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
        "demo-1.0.data/scripts/demo": b"#!python\nold\n",
        "demo-1.0.data/scripts/demo-script.py": b"#!python\nold\n",
    }
    layer = install(store, make_wheel(tmp_path, files))
    assert b"from demo import main" in layer["opt/venv/bin/demo"].data
    assert "opt/venv/bin/demo-script.py" not in layer


def test_record_is_that_of_an_installed_project(tmp_path: Path, store: Store) -> None:
    files = {
        "demo/a,b.py": b"comma",
        "demo-1.0.data/scripts/run": b"#!python\n1\n",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
        "demo-1.0.dist-info/direct_url.json": b"{}",
    }
    layer = install(store, make_wheel(tmp_path, files))
    rows = rows_of(layer[f"{SITE}/demo-1.0.dist-info/RECORD"].data)
    assert rows.pop("demo-1.0.dist-info/RECORD") == ("", "")
    installed = {path: entry for path, entry in layer.items() if entry.kind == "file"}
    del installed[f"{SITE}/demo-1.0.dist-info/RECORD"]
    expected = {
        (
            path.removeprefix(f"{SITE}/")
            if path.startswith(SITE)
            else f"../../../{path.removeprefix('opt/venv/')}"
        ): (
            f"sha256={encoded(entry.data)}",
            str(len(entry.data)),
        )
        for path, entry in installed.items()
    }
    assert rows == expected
    assert "../../../bin/run" in rows
    assert f"{SITE}/demo-1.0.dist-info/direct_url.json" not in layer


def test_a_file_that_record_forgot_is_hashed(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {"demo/a.py": b"1"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("demo/extra.py", b"extra")
    layer = install(store, path)
    rows = rows_of(layer[f"{SITE}/demo-1.0.dist-info/RECORD"].data)
    assert rows["demo/extra.py"] == (f"sha256={encoded(b'extra')}", "5")


def test_folder_entries_add_nothing(tmp_path: Path, store: Store) -> None:
    folder = File(mode=stat.S_IFDIR | 0o700, method=zipfile.ZIP_STORED)
    layer = install(store, make_wheel(tmp_path, {"demo/": folder, "empty/": folder, "demo/a.py": b"1"}))
    assert layer[f"{SITE}/demo"].mode == 0o775
    assert f"{SITE}/empty" not in layer


def test_wheels_of_a_group_share_identical_files(tmp_path: Path, store: Store) -> None:
    one = make_wheel(tmp_path, {"nvidia/__init__.py": b"", "nvidia/one.so": b"1"}, name="one")
    two = make_wheel(tmp_path, {"nvidia/__init__.py": b"", "nvidia/two.so": b"2"}, name="two")
    layer = install(store, one, two)
    assert {f"{SITE}/nvidia/{name}" for name in ("__init__.py", "one.so", "two.so")} <= set(layer)
    for name in ("one", "two"):
        assert "nvidia/__init__.py" in rows_of(layer[f"{SITE}/{name}-1.0.dist-info/RECORD"].data)


def test_different_content_for_one_path_names_both(tmp_path: Path, store: Store) -> None:
    one = make_wheel(tmp_path, {"shared/x.py": b"1", "shared/y.py": b"1"}, name="one")
    two = make_wheel(tmp_path, {"shared/x.py": b"2", "shared/y.py": b"2"}, name="two")
    for refuse in (
        lambda: splice([one, two], store),
        lambda: check_collisions({p.name: p for p in (one, two)}),
    ):
        with pytest.raises(BuildError, match=r"site-packages/shared/x.py.*different content") as caught:
            refuse()
        assert "one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl" in str(caught.value)
        assert len(caught.value.problems) == 2


def test_two_commands_of_one_name_collide(tmp_path: Path) -> None:
    wheels = [
        make_wheel(
            tmp_path,
            {f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\nrun = {name}:main\n".encode()},
            name=name,
        )
        for name in ("one", "two")
    ]
    with pytest.raises(BuildError, match=r"/bin/run`, with different content"):
        check_collisions({path.name: path for path in wheels})


def test_a_file_and_a_folder_of_one_path_collide(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, {"shared": b"1"}, name="one")
    two = make_wheel(tmp_path, {"shared/x.py": b"1"}, name="two")
    with pytest.raises(BuildError, match="a file in the first only"):
        check_collisions({path.name: path for path in (one, two)})


def test_spilled_tests_and_documents_may_differ(tmp_path: Path, store: Store) -> None:
    one = make_wheel(tmp_path, {"tests/conftest.py": b"1", "LICENSE": b"1"}, name="one")
    two = make_wheel(tmp_path, {"tests/conftest.py": b"2", "LICENSE": b"2"}, name="two")
    layer = install(store, one, two)
    assert (layer[f"{SITE}/tests/conftest.py"].data, layer[f"{SITE}/LICENSE"].data) == (b"2", b"2")


def test_progress_adds_up_to_the_wheel(tmp_path: Path, store: Store) -> None:
    wheel = make_wheel(tmp_path, {"demo/a": dice(3).randbytes(3_000_000), "demo/b": b"x" * 1000})
    counts: list[int] = []
    splice([wheel], store, counts.append)
    assert sum(counts) == wheel.stat().st_size
    assert len(counts) > 2


@pytest.mark.parametrize("seed", range(12))
def test_random_wheels_come_out_as_they_went_in(tmp_path: Path, store: Store, seed: int) -> None:
    chance = dice(seed)
    contents = {}
    for number in range(chance.randint(1, 60)):
        size = chance.choice([0, 1, 511, 512, 513, 4096, 70_000, 1 << 20, (1 << 20) + 1])
        data = (
            chance.randbytes(size)
            if chance.random() < 0.3
            else bytes(chance.choices(b"abc\n", k=min(size, 5000))) * 3
        )
        folder = "/".join("d" * chance.randint(1, 40) for _ in range(chance.randint(0, 5)))
        contents[f"{folder}/f{number}".lstrip("/")] = data
    files = {
        name: File(
            data=data,
            mode=stat.S_IFREG | chance.choice([0o644, 0o755]),
            method=chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        )
        for name, data in contents.items()
    }
    layer = install(store, make_wheel(tmp_path, files))
    assert {name: layer[f"{SITE}/{name}"].data for name in contents} == contents
    for name, file in files.items():
        assert layer[f"{SITE}/{name}"].mode == (0o775 if file.mode & 0o100 else 0o664)
