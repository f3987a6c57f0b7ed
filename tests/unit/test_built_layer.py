"""A built layer: what its key counts, the script of its steps, and which of the product becomes the layer."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shlex
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.core.progress import no_advance
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import Sandbox
from imagebuilder.layers import built
from imagebuilder.layers.built import build_built_layer
from imagebuilder.layers.system.install import HANDED
from imagebuilder.lock.model import Source
from imagebuilder.plan import BuiltLayer, OsLayer, User
from imagebuilder.store import Store
from tests.support.wheels import Unpacked, unpack
from tests.unit import samples

SOURCE = Source(
    name="hello",
    version="1.0-1",
    file="hello_1.0.orig.tar.gz",
    size=0,
    sha256=hashlib.sha256(b"").hexdigest(),
)
Make = Callable[[BuiltLayer, Callable[[tarfile.TarFile], None]], dict[str, Unpacked]]


def layer(**changes: object) -> BuiltLayer:
    fields: dict[str, object] = {
        "component": "hello",
        "version": "1.0",
        "root": OsLayer(
            distribution="debian",
            suite="trixie",
            architecture="amd64",
            debs=(samples.deb("gcc"),),
            user=User(name="root", uid=0, home="/root"),
            python="3.13",
            venv="",
        ),
        "below": (),
        "wheels": (),
        "sources": (SOURCE,),
        "env": (("CC", "gcc-14"),),
        "steps": ("make", 'make install prefix="$DESTDIR/usr/local"'),
        "produces": ("usr/local/bin", "usr/local/lib"),
    }
    return BuiltLayer(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a layer of what the steps are said to have installed, and give its members."""
    for file in ("source", "deb"):
        (tmp_path / file).write_bytes(b"")

    def hand_in(_layer: OsLayer, _files: object, folder: Path, *_tools: object) -> int:
        (folder / HANDED / "hooks").mkdir(parents=True)
        return 0

    monkeypatch.setattr(built, "hand_in", hand_in)

    def run(planned: BuiltLayer, add: Callable[[tarfile.TarFile], None]) -> dict[str, Unpacked]:
        def in_root(_layer: OsLayer, _sandbox: Sandbox, hooks: Sequence[str], memory: int) -> None:
            assert memory
            with tarfile.open(shlex.split(hooks[-1])[-1], "w") as tar:
                add(tar)

        monkeypatch.setattr(built, "run_in_root", in_root)
        store = Store(tmp_path / "store")
        downloads = {SOURCE.sha256: tmp_path / "source", "d" * 64: tmp_path / "deb"}
        record = build_built_layer(planned, downloads, (), store, no_advance)
        return unpack(record, store)

    return run


def put(tar: tarfile.TarFile, name: str, mode: int = 0o644, **more: object) -> None:
    member = tarfile.TarInfo(f"./{name}")
    member.mode, member.uid, member.mtime, member.size = mode, 1000, 12345, 0
    for key, value in more.items():
        setattr(member, key, value)
    content = b"x" * member.size
    tar.addfile(member, io.BytesIO(content) if content else None)


def test_only_what_is_declared_becomes_the_layer_with_the_modes_of_packages(
    make: Make,
) -> None:
    def add(tar: tarfile.TarFile) -> None:
        put(tar, "usr/local/lib", 0o700, type=tarfile.DIRTYPE)
        put(tar, "usr/local/lib/libhello.so.1", 0o755, size=5)
        put(tar, "usr/local/lib/libhello.so", type=tarfile.SYMTYPE, linkname="libhello.so.1")
        put(tar, "usr/local/bin/hello", 0o4711, size=3)
        put(tar, "usr/local/bin/hi", type=tarfile.LNKTYPE, linkname="./usr/local/bin/hello")
        put(tar, "usr/local/share/notes", size=3)
        put(tar, "tmp/log", size=3)

    members = make(layer(), add)
    assert list(members) == [
        "usr",
        "usr/local",
        "usr/local/bin",
        "usr/local/bin/hello",
        "usr/local/bin/hi",
        "usr/local/lib",
        "usr/local/lib/libhello.so",
        "usr/local/lib/libhello.so.1",
    ]
    assert members["usr/local/lib"].mode == 0o755
    assert members["usr/local/bin/hello"].mode == 0o755
    assert members["usr/local/bin/hi"].data == b"xxx"
    assert members["usr/local/lib/libhello.so"].data == b"libhello.so.1"


def test_what_is_in_the_venv_is_its_groups_too(make: Make) -> None:
    place = "opt/venv/lib/python3.13/site-packages/hello"
    members = make(layer(produces=(place,)), lambda tar: put(tar, f"{place}/a.py", 0o644, size=1))
    assert members[f"{place}/a.py"].mode == 0o664
    assert members[place].mode == 0o775


def test_nothing_where_something_was_declared_is_an_error(
    make: Make,
) -> None:
    with pytest.raises(BuildError, match=r"nothing was made at /usr/local/lib"):
        make(layer(), lambda tar: put(tar, "usr/local/bin/hello", size=1))


def test_a_device_or_a_path_that_leads_out_is_refused(
    make: Make,
) -> None:
    narrow = layer(produces=("usr",))
    with pytest.raises(BuildError, match="neither file, folder nor link"):
        make(narrow, lambda tar: put(tar, "usr/null", type=tarfile.CHRTYPE))
    with pytest.raises(BuildError, match=r"leads out of its folder"):
        make(narrow, lambda tar: put(tar, "usr/../etc/passwd", size=1))


def test_all_that_determines_the_bytes_is_in_the_key() -> None:
    plain = layer()
    others = [
        layer(root=dataclasses.replace(plain.root, debs=(samples.deb("gcc", "2"), samples.deb("make")))),
        layer(below=(plain,)),
        layer(wheels=(samples.wheel("cython"),)),
        layer(sources=(SOURCE.model_copy(update={"sha256": "6" * 64}),)),
        layer(env=(("CC", "gcc-13"),)),
        layer(steps=("make",)),
        layer(produces=("usr/local/bin",)),
    ]
    assert len({plain.key, *(other.key for other in others)}) == 8
    assert layer().key == plain.key


def test_the_script_is_one_that_a_shell_takes() -> None:
    script = layer(steps=('make -j"$JOBS"', "ln -s 'a b' \"$DESTDIR\"/c")).script("/imagebuilder")
    process.run(["sh", "-n"], timeout=10, stdin=script)
    lines = script.splitlines()
    assert "export DESTDIR=/imagebuilder/product" in lines
    assert "export HOSTNAME=localhost" in lines
    assert "export CC=gcc-14" in lines
    assert "cd /usr/src/hello-1.0" in lines
    assert lines[-1] == "ln -s 'a b' \"$DESTDIR\"/c"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Setting up gcc (14) ...\ncompiling\nx.c:1: error: no", "compiling hello failed:\nx.c:1: error: no"),
        ("make: *** [all] Error 2", "compiling failed, or making the root for it:\nmake: *** [all] Error 2"),
    ],
)
def test_a_step_that_fails_is_told_in_its_own_words(make: Make, said: str, shown: str) -> None:
    def fail(_tar: tarfile.TarFile) -> None:
        raise BuildError(f"making the system failed:\n{said}", where="debian trixie")

    with pytest.raises(BuildError) as caught:
        make(layer(), fail)
    (problem,) = caught.value.problems
    assert (problem.where, problem.message) == ("hello 1.0", shown)
    assert "use the suite's package" in problem.hint
