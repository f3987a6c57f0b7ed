"""Bytecode layers: which modules are compiled, where the result stands, and that nothing else decides on it.

The sandbox of these tests runs the real script with the Python of the tests, in the place of an image's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
import os
import random
import runpy
import struct
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import cast

import pytest

from imagebuilder.bases import tree
from imagebuilder.core import process
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import Sandbox, Tools
from imagebuilder.layers.bytecode import interpreter
from imagebuilder.layers.bytecode import layer as bytecode
from imagebuilder.layers.bytecode.interpreter import Interpreters
from imagebuilder.layers.bytecode.layer import build_bytecode_layer, bytecode_path
from imagebuilder.layers.wheels.placement import VenvLayout
from imagebuilder.lock.model import Deb
from imagebuilder.plan import VENV, BytecodeLayer
from imagebuilder.store import DamagedDownloadError, LayerRecord, Store
from tests.support.wheels import Files, Unpacked, locked, make_wheel, splice, unpack

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"{VENV.strip('/')}/lib/python{PYTHON}/site-packages"
MODULES = {f"demo/m{number}.py": f"def f{number}(): return {number}, 'a b'\n".encode() for number in range(9)}


@dataclasses.dataclass(frozen=True)
class OwnPython:
    """A sandbox whose Python is that of the tests."""

    folder: Path
    variables: Mapping[str, str]
    is_root: bool = False
    contained: bool = False

    def copy_in(self, *names: str) -> None:
        assert all((self.folder / name).exists() for name in names)

    def copy_out(self, name: str) -> None:
        assert (self.folder / name).exists()

    def has(self, path: Path) -> bool:
        return path.is_file()

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        cwd: Path | None = None,
    ) -> process.Result:
        assert env is None
        words = [str(word) for word in argv]
        if words[:2] == ["sh", "hooks/unpack.sh"]:
            return process.Result(argv=tuple(words), code=0, stdout="", stderr="")
        assert words[:3] == ["sh", "hooks/python.sh", f"python{PYTHON}"]
        command = [sys.executable, "-S", "-s", "-B", *words[3:]]
        return process.run(command, timeout=timeout, env=self.variables, cwd=cwd, check=check)


class OwnTools(Tools):
    """Opens such a sandbox."""

    variables: Mapping[str, str]

    def __init__(self, **variables: str) -> None:
        super().__init__()
        object.__setattr__(self, "variables", variables)

    @contextmanager
    def open(self, folder: Path, *, network: bool, shares: Sequence[Path] = ()) -> Iterator[Sandbox]:
        assert not network
        assert not shares
        yield cast("Sandbox", OwnPython(folder, self.variables))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def layer_of(*wheels: Path, python: str = PYTHON) -> BytecodeLayer:
    return BytecodeLayer(
        component="python",
        wheels=tuple(locked(path) for path in wheels),
        python=python,
        packages=(),
        below=(),
        architecture="amd64",
    )


def make(store: Store, *wheels: Path, tools: Tools | None = None) -> LayerRecord:
    layer = layer_of(*wheels)
    places = {wheel.sha256: path for wheel, path in zip(layer.wheels, wheels, strict=True)}
    return built(layer, places, store, tools=tools)


def built(
    layer: BytecodeLayer,
    downloads: Mapping[str, Path],
    store: Store,
    advance: Advance = no_advance,
    tools: Tools | None = None,
) -> LayerRecord:
    with Interpreters(store, tools or OwnTools()) as pythons:
        return build_bytecode_layer(layer, downloads, store, advance, pythons)


def made(store: Store, folder: Path, files: Files) -> dict[str, Unpacked]:
    folder.mkdir(exist_ok=True)
    return unpack(make(store, make_wheel(folder, files)), store)


def files_in(found: Mapping[str, Unpacked]) -> set[str]:
    return {path for path, item in found.items() if item.kind == "file"}


def pyc(path: str) -> str:
    return f"{SITE}/{cache_from_source(path)}"


def test_bytecode_stands_where_python_looks_for_it() -> None:
    for name in ("a.py", "pkg/__init__.py", "pkg/a.b.py"):
        assert bytecode_path(f"{SITE}/{name}", PYTHON) == pyc(name)


def test_it_is_what_python_would_have_made(tmp_path: Path, store: Store) -> None:
    source = b"'''Text.'''\nNAME = 'x'\n\ndef call(a, *, b=(1, 2.5)):\n    return {a, 'y'} or b\n"
    found = made(store, tmp_path, {"demo/__init__.py": source})
    data = found[pyc("demo/__init__.py")].data
    # PEP 552: no flags, the time of every file in a layer, and the size of the source.
    assert data[:16] == MAGIC_NUMBER + struct.pack("<III", 0, 0, len(source))
    code = marshal.loads(data[16:])  # noqa: S302  our own
    assert isinstance(code, types.CodeType)
    assert code.co_filename == f"/{SITE}/demo/__init__.py"
    assert code == compile(source, code.co_filename, "exec", dont_inherit=True)


def test_python_imports_it_and_notices_a_change(tmp_path: Path, store: Store) -> None:
    wheel = make_wheel(tmp_path, {"demo/__init__.py": b"answer = 41\n"})
    root = tmp_path / "root"
    for record in (splice((wheel,), store, python=PYTHON), make(store, wheel)):
        for path, item in unpack(record, store).items():
            if item.kind == "file":
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(item.data)
                os.utime(root / path, (0, 0))

    def said() -> tuple[str, str]:
        words = [sys.executable, "-S", "-B", "-v", "-c", "import demo; print(demo.answer)"]
        result = process.run(words, timeout=60, env={"PYTHONPATH": str(root / SITE)})
        return result.stdout.strip(), result.stderr

    answer, log = said()
    assert answer == "41"
    assert f"# code object from '{root}/{pyc('demo/__init__.py')}'" in log
    (root / SITE / "demo/__init__.py").write_bytes(b"answer = 42\n")  # of the same size
    answer, log = said()
    assert answer == "42"
    assert "# bytecode is stale for 'demo'" in log


def test_what_does_not_compile_is_left_out(tmp_path: Path, store: Store) -> None:
    files = {
        "demo/good.py": b"x = 1\n",
        "demo/two.py": b"print 'Python 2'\n",
        "demo/zero.py": b"x = '\0'\n",
        "demo/latin.py": b"x = '\xe9'\n",
        "demo/declared.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        "demo/template.py": b"class {{ name }}: pass\n",
        "demo/warns.py": b"x = '\\d'\nassert (x, 'always')\n",
    }
    assert files_in(made(store, tmp_path, files)) == {
        pyc("demo/good.py"),
        pyc("demo/declared.py"),
        pyc("demo/warns.py"),
    }


def test_modules_that_break_a_compiler_cost_themselves_alone(tmp_path: Path, store: Store) -> None:
    files = {
        "demo/a.py": b"x = 1\n",
        # Older parsers run out of what they call memory.
        "demo/b.py": b"-" * 40_000 + b"1\n",
        "demo/c.py": b"a" + b".b" * 20_000 + b"\n",
        "demo/d.py": b"(" * 40_000,
        "demo/e.py": b"x = 2\n",
        "demo/f.py": b"x = 1\n" * (1 << 20),
    }
    assert files_in(made(store, tmp_path, files)) == {pyc("demo/a.py"), pyc("demo/e.py")}


BROKEN = """
import os, runpy, signal, sys
script = runpy.run_path(sys.argv[1])
inner = script["main"].__globals__
def compiled(path, source):
    if path == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if path == "endless":
        while True:
            pass
    if path == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(path, source if path != "large" else b"x = [" + b"a," * 500_000 + b"]")
original, inner["compiled"], inner["_SECONDS"], inner["_MEMORY"] = inner["compiled"], compiled, 1, 200 << 20
inner["main"](*sys.argv[2:])
"""


def compiled_with(tmp_path: Path, *names: str) -> tuple[int, str, dict[str, bytes]]:
    """Compile modules of these names in one batch, with a compiler that breaks at some."""
    head = struct.Struct("<IIQ")
    sources = b"".join(head.pack(7, len(name), 6) + name.encode() + b"x = 1\n" for name in names)
    (tmp_path / "sources").write_bytes(sources)
    script = Path(bytecode.__file__).parents[1] / "hooks" / "bytecode" / "compile.py"
    out = tmp_path / "made"
    out.unlink(missing_ok=True)
    argv: list[str | Path] = [sys.executable, "-c", BROKEN, script, tmp_path / "sources", out, PYTHON]
    result = process.run(argv, timeout=60, check=False)
    found, data = {}, out.read_bytes()
    while data:
        _, length, size = head.unpack_from(data)
        found[data[head.size : head.size + length].decode()] = data[head.size + length :][:size]
        data = data[head.size + length + size :]
    return result.code, result.stderr, found


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["segfault", "endless", "large"])
def test_what_ends_the_compiler_is_left_out_and_the_same_each_time(tmp_path: Path, bad: str) -> None:
    code, said, found = compiled_with(tmp_path, "a", bad, "b")
    assert (code, said, set(found)) == (0, "", {"a", "b"})
    assert compiled_with(tmp_path, "a", bad, "b")[2] == found
    assert not list(tmp_path.glob("core*"))


def test_a_compiler_that_the_host_ended_says_nothing_about_a_module(tmp_path: Path) -> None:
    code, said, _ = compiled_with(tmp_path, "a", "killed")
    assert (code, said) == (1, "Python ended with -9 at /a or a module beside it\n")


def test_how_deep_a_module_may_nest_does_not_depend_on_the_host() -> None:
    script = Path(bytecode.__file__).parents[1] / "hooks" / "bytecode" / "python.sh"
    assert "\nulimit -S -s 8192\n" in script.read_text()


def test_only_modules_are_compiled_and_bytecode_of_the_wheel_stays(tmp_path: Path, store: Store) -> None:
    own = cache_from_source("demo/own.py")
    files = {
        "demo/a.py": b"",
        "demo/own.py": b"x = 1\n",
        own: b"the wheel's",
        "demo/data.txt": b"x = 1\n",
        "demo-1.0.data/scripts/tool.py": b"#!python\n",
        "demo-1.0.data/data/share/example.py": b"x = 1\n",
        "demo-1.0.data/purelib/demo/b.py": b"x = 1\n",
    }
    assert files_in(made(store, tmp_path, files)) == {pyc("demo/a.py"), pyc("demo/b.py")}


def test_folders_and_files_have_the_modes_of_the_wheels_own(tmp_path: Path, store: Store) -> None:
    wheel = make_wheel(tmp_path, {"demo/a.py": b""})
    spliced, found = unpack(splice((wheel,), store, python=PYTHON), store), unpack(make(store, wheel), store)
    for path, item in found.items():
        expected = spliced.get(path, spliced[f"{SITE}/demo"])
        assert item.mode == (expected.mode if item.kind == "dir" else spliced[f"{SITE}/demo/a.py"].mode)


def test_wheels_without_modules_give_no_layer(tmp_path: Path, store: Store) -> None:
    tools = cast("Tools", object())  # nothing is run
    assert make(store, make_wheel(tmp_path, {"lib/x.so": b""}), tools=tools).is_empty


def test_wheels_whose_modules_do_not_compile_give_no_layer(tmp_path: Path, store: Store) -> None:
    """A second time too, when the file that held the wheel's bytecode is gone, which is as empty."""
    wheel = make_wheel(tmp_path, {"demo/a.py": b"def broken("})
    for _ in range(2):
        assert make(store, wheel).is_empty
        for blob in (store.root / "blobs" / "sha256").iterdir():
            blob.unlink()


def test_seed_processes_and_place_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Strings that several modules share, sets, and the same qualified names: what marshal's references see.
    body = b"class Same:\n    def method(self): return self in {None, 'a', 'b c', 2}, 'shared text'\n"
    files = {f"demo/m{number}.py": body + b"x%d = 'a b'\n" % number for number in range(40)}
    wheel = make_wheel(tmp_path, files)
    one = make(Store(tmp_path / "one"), wheel, tools=OwnTools(PYTHONHASHSEED="1"))
    monkeypatch.setattr(bytecode, "_SLICE_BYTES", 500)
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        other = make(Store(tmp_path / "a longer name"), wheel, tools=OwnTools(PYTHONHASHSEED="77"))
    finally:
        os.sched_setaffinity(0, cores)
    assert one == other


def test_a_wheel_s_bytecode_does_not_depend_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    monkeypatch.setattr(bytecode, "_BATCH_BYTES", 200)
    wheel = make_wheel(tmp_path, MODULES)
    more = {f"aaa/x{number}.py": source for number, source in enumerate(MODULES.values())}
    other = make_wheel(tmp_path, more, name="aaa")
    alone, beside = unpack(make(one, wheel), one), unpack(make(two, other, wheel), two)
    assert {path: beside[path] for path in alone} == alone
    assert len(beside) > len(alone)


def compiled_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the path of every module that is compiled from now on."""
    found: list[str] = []

    def slices(modules: Iterable[bytecode._Module]) -> Iterator[list[list[bytecode._Module]]]:
        given = list(modules)
        found.extend(module.placed.path for module in given)
        return original(given)

    original = bytecode._slices
    monkeypatch.setattr(bytecode, "_slices", slices)
    return found


def test_one_wheel_more_is_compiled_alone(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module that two wheels have goes with the later one, and what is kept of the first has it still.
    first = make_wheel(tmp_path, {**MODULES, "both/x.py": b"x = 1\n"}, name="first")
    later = make_wheel(tmp_path, {"later/a.py": b"a = 1\n"}, name="later")
    sharing = make_wheel(tmp_path, {"both/x.py": b"x = 1\n", "both/y.py": b"y = 1\n"}, name="sharing")
    compiled = compiled_by(monkeypatch)
    make(store, first)
    assert len(compiled) == len(MODULES) + 1
    for wheels, expected in (
        ((first, later), {f"{SITE}/later/a.py"}),
        ((later, first), set()),
        ((first, sharing), {f"{SITE}/{name}" for name in (*MODULES, "both/x.py", "both/y.py")}),
    ):
        compiled.clear()
        again = make(store, *wheels)
        assert set(compiled) == expected
        assert again == make(Store(tmp_path / f"{len(expected)}"), *wheels)


def test_what_is_kept_and_rotted_is_compiled_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, MODULES)
    compiled = compiled_by(monkeypatch)
    record = make(store, wheel)
    kept = [blob for blob in store.root.glob("blobs/*/*") if b"demo/m1.py" in blob.read_bytes()]
    for place in kept:
        data = bytearray(place.read_bytes())
        data[-1] ^= 1
        place.chmod(0o644)
        place.write_bytes(data)
    assert len(kept) == 1
    for times in (2, 2):  # mended by the first
        assert make(store, wheel) == record
        assert len(compiled) == times * len(MODULES)


def test_batches_are_small_and_of_one_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "_BATCH_BYTES", 100)
    monkeypatch.setattr(bytecode, "_SLICE_BYTES", 150)
    wheels = (
        make_wheel(tmp_path, MODULES),
        make_wheel(tmp_path, {"zzz/a.py": b"", "zzz/b.py": b""}, name="zzz"),
    )
    layer = layer_of(*wheels)
    downloads = {wheel.sha256: path for wheel, path in zip(layer.wheels, wheels, strict=True)}
    environment = VenvLayout(venv=VENV, python=PYTHON)
    modules = bytecode._modules(layer, downloads, environment)
    slices = list(bytecode._slices(modules))
    assert [module for batches in slices for batch in batches for module in batch] == list(modules)
    assert len(slices) > 1
    for batch in (batch for batches in slices for batch in batches):
        assert len({module.placed.wheel for module in batch}) == 1
        assert sum(module.placed.size for module in batch[:-1]) < 100


def test_a_damaged_wheel_is_named_so_that_it_is_fetched_again(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {"demo/a.py": random.Random(0).randbytes(5000)})  # noqa: S311 test data
    layer = layer_of(path)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedDownloadError) as caught:
        built(layer, {layer.wheels[0].sha256: path}, store)
    assert caught.value.sha256 == layer.wheels[0].sha256


def test_layers_of_a_build_share_one_python_and_nothing_stays(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[Path] = []
    original = interpreter._unpack

    def unpack_once(*given: object) -> None:
        unpacked.append(cast("Path", given[-1]))
        original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(interpreter, "_unpack", unpack_once)
    wheels = [make_wheel(tmp_path, MODULES, name=name) for name in ("one", "two")]
    alone = [make(Store(tmp_path / wheel.stem), wheel) for wheel in wheels]
    unpacked.clear()
    with Interpreters(store, OwnTools()) as pythons, ThreadPoolExecutor() as threads:
        layers = [layer_of(wheel) for wheel in wheels]
        jobs = [
            threads.submit(
                build_bytecode_layer, layer, {layer.wheels[0].sha256: wheel}, store, no_advance, pythons
            )
            for layer, wheel in zip(layers, wheels, strict=True)
        ]
        assert [job.result() for job in jobs] == alone
    assert len(unpacked) == 1
    assert not list((store.root / "work").iterdir())


def test_a_package_that_rotted_is_named(tmp_path: Path, store: Store) -> None:
    wheel = make_wheel(tmp_path, {"demo/a.py": b""})
    (tmp_path / "python.deb").write_bytes(b"something else")
    digest = hashlib.sha256(b"the package").hexdigest()
    deb = Deb(
        name="python3-minimal", version="1", architecture="amd64", path="p/python.deb", size=11, sha256=digest
    )
    layer = dataclasses.replace(layer_of(wheel), packages=(deb,))
    downloads = {layer.wheels[0].sha256: wheel, digest: tmp_path / "python.deb"}
    with pytest.raises(DamagedDownloadError):
        built(layer, downloads, store)


def test_another_python_is_refused(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, {"demo/a.py": b""})
    hooks = Path(bytecode.__file__).parents[1] / "hooks" / "bytecode"
    result = subprocess.run(
        [sys.executable, hooks / "compile.py", "/dev/null", tmp_path / "out", "3.1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert f"this is Python {PYTHON}" in result.stderr
    monkeypatch.setattr(OwnPython, "run", _failing)
    with pytest.raises(BuildError, match="the image's own Python failed") as caught:
        make(store, wheel)
    assert "no python3" in str(caught.value)


def test_a_build_that_ends_ends_here_too(tmp_path: Path, store: Store) -> None:
    layer = layer_of(wheel := make_wheel(tmp_path, MODULES))

    def ended(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(layer, {layer.wheels[0].sha256: wheel}, store, ended)
    assert not list((store.root / "work").iterdir())


def _failing(_sandbox: OwnPython, argv: Sequence[str | Path], **_options: object) -> process.Result:
    result = process.Result(argv=tuple(map(str, argv)), code=1, stdout="", stderr="no python3 here")
    raise process.CommandError(result, "ended with 1")


def test_of_a_base_only_python_and_what_it_runs_on_is_read() -> None:
    wanted = (
        "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "usr/lib/aarch64-linux-gnu/libc.so.6",
        "usr/lib/x86_64-linux-gnu/libexpat.so.1.10.1",
        "usr/lib/x86_64-linux-gnu/libz.so.1",
        "usr/bin/python3.13",
        "usr/lib/python3.13/encodings/utf_8.py",
    )
    others = (
        "usr/lib/x86_64-linux-gnu/libcublas.so.12",
        "usr/bin/bash",
        "etc/passwd",
        "usr/lib/python3/dist-packages/x.py",
    )
    found = tree.Tree()
    for path in (*wanted, *others):
        folder = found.root
        for name in path.split("/"):
            folder = folder.children.setdefault(name, tree.TreeNode(inode=found.root.inode))
    interpreter._keep(found.root, "")
    leaves = [path for path, node in found.walk() if not node.children]
    assert sorted(leaves) == sorted(wanted)


@pytest.mark.parametrize(
    ("source", "unsettled"),
    [
        ("x in {'a', 'b', 3, 2.5, (1, 'c')}", False),
        ("x in {None}", False),
        ("x in (None, 'a')", False),
        ("x in {None, 'a'}", True),
        ("x in {..., 'a'}", True),
        ("x in {'a', (1, None)}", True),
        ("def f(x):\n    return [y for y in x if y in {None, 0}]", True),
    ],
)
def test_sets_whose_order_is_an_accident_are_known_for_older_pythons(source: str, unsettled: bool) -> None:
    """Before 3.11 two processes write such a set in two orders, so its module is left out."""
    compiler = runpy.run_path(str(Path(bytecode.__file__).parents[1] / "hooks" / "bytecode" / "compile.py"))
    assert compiler["has_unsettled_set"](compile(source, "/x.py", "exec")) is unsettled
