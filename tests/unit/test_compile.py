"""Packages of `compile:`: hostile sources, what a key counts, the script of a build, and its last test."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from imagebuilder import catalog
from imagebuilder.catalog import limits, select
from imagebuilder.core import process, yamlfile
from imagebuilder.engines.steps import needed
from imagebuilder.errors import ConflictError, InputError, LockError
from imagebuilder.lock import rules
from imagebuilder.lock.model import Build, Compiled, Lock, LockedPatch, Source
from imagebuilder.plan import CompiledLayer, plan
from imagebuilder.plan.layer import FilesLayer
from imagebuilder.recipe import reading
from imagebuilder.resolve import compiles, sdist
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from tests.unit import samples

PATCH = "--- a/x.c\n+++ b/x.c\n"
SHA = hashlib.sha256(PATCH.encode()).hexdigest()
INFO = "Metadata-Version: 2.4\nName: fast\nVersion: 1.0\nRequires-Dist: numpy>=2\n"
RECIPE = f"""
name: sample
base: debian:trixie
python: "3.13"
pins: {{torch: "2.10.0", openmpi: "5.0.7"}}
pip: ["fast==1.0"]
compile:
  - name: fast
    requires: [torch]
    apt: [cmake]
    env: {{FAST: "1"}}
    patches: [{{file: patches/x.patch, sha256: {SHA}}}]
"""
Put = Callable[[tarfile.TarFile], None]


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return path


def file(name: str, text: str = "", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(member, key, value)
    return member, text.encode()


def test_a_source_says_what_it_requires_and_is_not_executed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = archive(
        tmp_path / "x.tar.gz",
        file("fast-1.0/setup.py", f"open({str(ran)!r}, 'w')"),
        file("fast-1.0/PKG-INFO", INFO),
        file("fast-1.0/pyproject.toml", '[build-system]\nrequires = ["setuptools>=77", "torch"]\n'),
    )
    found = sdist.read(path)
    assert found.depends == ("numpy>=2",)
    assert found.requires == ("setuptools>=77", "torch")
    assert not ran.exists()


def test_an_old_source_says_it_in_requires_txt(tmp_path: Path) -> None:
    listed = 'psutil\n\n[:python_version < "3.7"]\ndataclasses\n\n[test]\npytest\n\n[a:b == "c"]\nd\n'
    path = archive(
        tmp_path / "x.tar.gz",
        file("fast-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: fast\nVersion: 1.0\n"),
        file("fast-1.0/fast.egg-info/requires.txt", listed.replace('b == "c"', 'os_name == "nt"')),
    )
    assert sdist.read(path).depends == (
        "psutil",
        'dataclasses; python_version < "3.7"',
        'pytest; extra == "test"',
        'd; os_name == "nt" and extra == "a"',
    )
    assert sdist.read(path).requires == ("setuptools>=40.8.0", "wheel")


TOP = "fast-1.0"
HOSTILE = {
    "above": (
        [file(f"{TOP}/../../etc/x")],
        "has a member that would be written elsewhere: `fast-1.0/../../etc/x`",
    ),
    "absolute": ([file("/etc/x")], "has a member that would be written elsewhere: `/etc/x`"),
    "link": (
        [file(f"{TOP}/a", type=tarfile.SYMTYPE, linkname="../../etc")],
        "has a link out of its folder: `fast-1.0/a`",
    ),
    "absolute link": (
        [file(f"{TOP}/a", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        "has a link out of its folder: `fast-1.0/a`",
    ),
    "hard link": (
        [file(f"{TOP}/a", type=tarfile.LNKTYPE, linkname="etc/passwd")],
        "has a link out of its folder: `fast-1.0/a`",
    ),
    "device": (
        [file(f"{TOP}/a", type=tarfile.CHRTYPE)],
        "has `fast-1.0/a`, which is neither file, folder nor link",
    ),
    "pipe": (
        [file(f"{TOP}/a", type=tarfile.FIFOTYPE)],
        "has `fast-1.0/a`, which is neither file, folder nor link",
    ),
    "two folders": (
        [file(f"{TOP}/a"), file("other/b")],
        "has files beside its folder `fast-1.0`: `other`",
    ),
    "no metadata": ([file(f"{TOP}/a")], "has no PKG-INFO in its folder"),
    "bad requirement": (
        [file(f"{TOP}/PKG-INFO", "Requires-Dist: a b c\n")],
        "has a requirement that cannot be read: `a b c`",
    ),
    "bad TOML": (
        [file(f"{TOP}/PKG-INFO", INFO), file(f"{TOP}/pyproject.toml", "[")],
        "has a pyproject.toml that cannot be read",
    ),
    "keys that take a minute": (
        [file(f"{TOP}/PKG-INFO", INFO), file(f"{TOP}/pyproject.toml", "a." * 30_000 + "a = 1")],
        "has a pyproject.toml that cannot be read: has a key of more than 32 parts",
    ),
    "no list": (
        [file(f"{TOP}/PKG-INFO", INFO), file(f"{TOP}/pyproject.toml", "build-system.requires = 3")],
        "has a [build-system] whose `requires` is not a list of texts",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_source_is_refused(case: str, tmp_path: Path) -> None:
    members, message = HOSTILE[case]
    with pytest.raises(sdist.UnsafeError) as caught:
        sdist.read(archive(tmp_path / "x.tar.gz", *members))
    assert str(caught.value).startswith(message)


def test_a_source_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "x.tar.gz", file("fast-1.0/PKG-INFO", INFO), file("fast-1.0/a", "x" * 3000))
    monkeypatch.setattr(sdist, "MOST_BYTES", 2000)
    with pytest.raises(sdist.UnsafeError, match="unpacks to more than"):
        sdist.read(path)
    monkeypatch.setattr(sdist, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(sdist, "MOST_FILES", 1)
    with pytest.raises(sdist.UnsafeError, match="unpacks to more than 1 files"):
        sdist.read(path)


@pytest.mark.parametrize(
    "data", [b"", b"PK\3\4 a zip", gzip.compress(b"x" * 700, mtime=0), b"\x1f\x8b\x08 no gzip"]
)
def test_what_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(data)
    with pytest.raises(sdist.UnsafeError):
        sdist.read(tmp_path / "x.tar.gz")


def parsed(text: str) -> object:
    return reading.checked(yamlfile.parse(text.encode(), "r.yaml"), catalog.names())[0]


WRONG = {
    "not asked for": (("fast==1.0", "slow==1.0"), "`fast` is compiled, and nothing asks for it"),
    "twice": (("    requires: [torch]", "    requires: [torch]\n  - name: Fast"), "`fast` is listed twice"),
    "reserved": (("FAST:", "LD_PRELOAD:"), "`LD_PRELOAD` is set by the build"),
    "path": (("patches/x.patch", "../x.patch"), "`../x.patch` is not a path below the recipe's folder"),
    "url": (("requires: [torch]", "requires: ['a @ file:///a']"), "`a @ file:///a` is not a requirement"),
    "base": (("base: debian:trixie", "base: {image: 'a:b'}"), "packages are compiled in a root of a suite's"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_entry_is_refused_by_its_line(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        parsed(RECIPE.replace(*change))
    (problem,) = [item for item in caught.value.problems if message in item.message]
    assert problem.where.startswith("r.yaml:")
    assert problem.hint


def build(**changes: object) -> Build:
    """A build of the package, with torch of the image, and setuptools."""
    digest = hashlib.sha256(b"fast").hexdigest()
    fields: dict[str, object] = {
        "component": "fast",
        "version": "1.0",
        "packages": ("gcc",),
        "system": ("python3",),
        "debs": (samples.deb("gcc"),),
        "wheels": (samples.wheel("setuptools"),),
        "sources": (Source(name="fast", version="1.0", file="fast-1.0.tar.gz", size=1, sha256=digest),),
        "compiled": Compiled(
            depends=("numpy>=1",),
            requires=("setuptools", "torch"),
            against=("torch",),
            beside=("numpy",),
            patches=(LockedPatch(file="patches/x.patch", sha256=SHA, text=PATCH),),
        ),
    }
    return Build.model_validate({**fields, **changes})


def locked(**changes: object) -> Lock:
    return samples.lock(builds=(build(),), **changes)


def planned(lock: Lock, text: str = RECIPE) -> CompiledLayer:
    recipe, places = reading.checked(yamlfile.parse(text.encode(), "r.yaml"), catalog.names())
    selection = replace(select(recipe, places), patches={"patches/x.patch": PATCH})
    (layer,) = [layer for layer in plan(selection, lock, ()).layers if isinstance(layer, CompiledLayer)]
    return layer


def test_another_numpy_compiles_nothing_and_another_torch_does() -> None:
    old = planned(locked())
    wheels = (samples.wheel("numpy", "2.0"), samples.wheel("torch", "2.10.0", component="torch"))
    other = planned(locked(wheels=(wheels[0].model_copy(update={"sha256": "a" * 64}), wheels[1])))
    assert other.beside != old.beside
    assert (other.wheel_key, other.key) == (old.wheel_key, old.key)
    torch = wheels[1].model_copy(update={"sha256": "b" * 64})
    assert planned(locked(wheels=(wheels[0], torch))).wheel_key != old.wheel_key


def test_the_key_counts_what_the_result_depends_on() -> None:
    old = planned(locked())
    links = FilesLayer(name="links", entries=())
    compiler = replace(old.root, debs=(*old.root.debs, samples.deb("gcc-13")))
    for change in (
        {"root": compiler},
        {"env": (("FAST", "2"),)},
        {"patches": (f"{PATCH} ",)},
        {"patches": ()},
        {"requirements": ()},
        {"imports": ("fast.more",)},
        {"sources": (old.sources[0].model_copy(update={"sha256": "c" * 64}),)},
    ):
        assert replace(old, **change).wheel_key != old.wheel_key
    assert replace(old, files=links, beside=()).wheel_key == old.wheel_key


def test_the_wheel_stays_in_a_store_that_is_tidied(tmp_path: Path) -> None:
    recipe, places = reading.checked(yamlfile.parse(RECIPE.encode(), "r.yaml"), catalog.names())
    image = plan(replace(select(recipe, places), patches={"patches/x.patch": PATCH}), locked(), ())
    assert planned(locked()).wheel_key in needed([image], Store(tmp_path)).layers


def test_a_patch_cannot_end_the_script_that_it_is_in() -> None:
    layer = replace(planned(locked()), patches=("TEXT\nIMAGEBUILDER_END_OF_FILE\ntouch /pwned\n",))
    lines = layer.script("/imagebuilder").splitlines()
    assert "touch /pwned" not in lines
    assert "IMAGEBUILDER_END_OF_FILE" not in lines
    assert lines.count("TEXT") == 3


def test_no_more_compilers_run_than_there_is_memory_for(tmp_path: Path) -> None:
    layer = planned(locked())
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {5 << 20} kB\n")
    lines = layer.script("/imagebuilder").splitlines()
    start, end = lines.index("free=0"), next(i for i, line in enumerate(lines) if "MAX_JOBS=" in line)
    script = "\n".join(["nproc() { echo 64; }", *lines[start : end + 1], 'echo "$MAX_JOBS $MAKEFLAGS"'])
    script = script.replace("/proc/meminfo", str(tmp_path / "meminfo"))
    assert process.run(["sh", "-euc", script], timeout=10).stdout == "2 -j2\n"


def test_open_mpi_s_compilers_look_for_no_network() -> None:
    """There is none; and CMake's FindMPI takes what they say of it on stderr for an option."""
    assert "export OMPI_MCA_if='^posix_ipv4'" in planned(locked()).script("/imagebuilder").splitlines()


def test_gpus_of_the_hosts_decide_what_is_compiled_for() -> None:
    text = RECIPE.replace('pins: {torch: "2.10.0",', 'hosts: {gpus: ["9.0", "8.0"]}\npins: {torch: "2.10.0",')
    text = text.replace('openmpi: "5.0.7"}', 'openmpi: "5.0.7", cuda: "13.0", gcc: "14"}')
    layer = planned(locked(), text.replace("    apt:", "    cuda: true\n    apt:"))
    env = dict(layer.env)
    assert env["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
    assert env["CUDA_HOME"] == "/usr/local/cuda"
    assert layer.gigabytes == 4
    assert "/usr/local/bin/nvcc" in [entry.path for entry in layer.files.entries]


@pytest.mark.parametrize(
    ("pins", "hosts", "message"),
    [
        (
            'cuda: "12.8", gcc: "13"',
            '["9.0"]',
            '`fast` is compiled for GPUs, and the wheels of cuda "12.8" hold no nvcc',
        ),
        ('gcc: "13"', '["9.0"]', "`fast` is compiled for GPUs, and `cuda` is not pinned"),
        ('cuda: "13.0"', '["9.0"]', "`fast` is compiled for GPUs, and `gcc` is not pinned"),
        (
            'cuda: "13.0", gcc: "14"',
            "[]",
            "`fast` is compiled for GPUs, and the recipe does not say for which",
        ),
    ],
)
def test_what_cannot_be_compiled_for_gpus_is_refused(pins: str, hosts: str, message: str) -> None:
    text = RECIPE.replace('openmpi: "5.0.7"', pins).replace("    apt:", "    cuda: true\n    apt:")
    recipe, places = reading.checked(
        yamlfile.parse(f"hosts: {{gpus: {hosts}}}\n{text}".encode(), "r.yaml"), catalog.names()
    )
    with pytest.raises(ConflictError) as caught:
        select(recipe, places)
    (problem,) = caught.value.problems
    assert problem.message == message
    assert problem.where == "r.yaml:9: compile[0]"


def test_horovod_is_refused_beside_a_newer_torch_unless_it_is_patched() -> None:
    text = RECIPE.replace('openmpi: "5.0.7"', 'openmpi: "5.0.7", horovod: "0.28.1"')
    text = text.replace('pip: ["fast==1.0"]', "").replace("name: fast", "name: horovod")

    def broken(text: str) -> list[str]:
        recipe, places = reading.checked(yamlfile.parse(text.encode(), "r.yaml"), catalog.names())
        return [problem.message for problem in limits.problems(select(recipe, places), {})]

    assert broken(text) == []
    (message,) = broken("".join(line for line in text.splitlines(True) if "patches:" not in line))
    assert message.startswith('torch "2.10.0" clashes with horovod "0.28.1", which needs 2.0 or older: ')
    assert "torch's headers need C++17" in message


def test_a_pinned_package_that_is_compiled_is_no_wheel_of_the_index() -> None:
    text = RECIPE.replace('openmpi: "5.0.7"', 'openmpi: "5.0.7", horovod: "0.28.1"')
    text = text.replace('pip: ["fast==1.0"]', "").replace("name: fast", "name: horovod")
    recipe, places = reading.checked(yamlfile.parse(text.encode(), "r.yaml"), catalog.names())
    wanted = request(select(recipe, places))
    assert [pin.pin for pin in wanted.wheel_pins] == ["torch"]
    (asked,) = wanted.compiles
    assert (asked.requirement, asked.value) == ("horovod==0.28.1.*", "==0.28.1.*")
    assert {"cmake", "patch", "python3.13-dev", "libopenmpi-dev", "g++"} <= set(asked.packages)


def test_a_patch_with_another_text_than_its_hash_is_refused() -> None:
    patch = LockedPatch(file="patches/x.patch", sha256=SHA, text="--- other")
    compiled = build().compiled
    assert compiled is not None
    changed = build(compiled=compiled.model_copy(update={"patches": (patch,)}))
    with pytest.raises(LockError, match=r"the text is not that of patches/x\.patch"):
        rules.require(samples.lock(builds=(changed,)), "x.lock")


def test_an_extension_for_another_torch_is_refused_before_it_is_compiled() -> None:
    text = RECIPE.replace("requires: [torch]", 'requires: ["torch>=2.11"]')
    recipe, places = reading.checked(yamlfile.parse(text.encode(), "r.yaml"), catalog.names())
    wanted = request(replace(select(recipe, places), patches={"patches/x.patch": PATCH}))
    prepared = compiles.Prepared(source=build().sources[0], depends=(), requires=())
    image = compiles.Image(debs=(samples.deb("libc6", "2.41-1"),), wheels=locked().wheels)
    with pytest.raises(ConflictError) as caught:
        compiles.resolve(wanted, {"fast": prepared}, image, site=None)  # type: ignore[arg-type]
    message = "fast is compiled with `torch>=2.11`, and the image has torch 2.10.0"
    assert caught.value.problems[0].message == message
    assert caught.value.problems[0].where == "r.yaml:8: compile[0]"


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script that tests a wheel, without its last line; nm and readelf answer from files."""
    path = Path(catalog.__file__).parents[1] / "plan/backend/extension.py"
    spec = importlib.util.spec_from_file_location("extension", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(path.read_text().removesuffix("main()\n"), module.__dict__)  # noqa: S102
    monkeypatch.setattr(module, "TRIED", tmp_path)

    def run(*command: str) -> str:
        if command[0] == "c++filt":
            return "".join(f"{name}\n" for name in command[1:])
        kind = "needed" if command[0] == "readelf" else command[3].strip("-").removesuffix("-only")
        place = Path(command[-1]).with_suffix(f".{kind}")
        return place.read_text() if place.exists() else ""

    monkeypatch.setattr(module, "run", run)
    return module


def needs(folder: Path, name: str, *libraries: str, undefined: str = "", defined: str = "") -> Path:
    path = folder / f"{name}.so"
    path.write_bytes(b"")
    path.with_suffix(".needed").write_text(
        "".join(f" 0x01 (NEEDED)  Shared library: [{library}]\n" for library in libraries)
    )
    path.with_suffix(".undefined").write_text("".join(f"{word} U\n" for word in undefined.split()))
    path.with_suffix(".defined").write_text("".join(f"{word} T 0 0\n" for word in defined.split()))
    return path


def test_a_missing_symbol_is_named_with_its_library(extension: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    torch = needs(tmp_path / "lib", "libtorch", defined="_ZN5torch3newE shared@@V1")
    own = needs(tmp_path, "fast", "libtorch.so", undefined="_ZN5torch3oldE _ZN5torch3newE shared@V1")
    assert extension.problems(own, {"libtorch.so": torch}, {}) == [
        (
            "fast.so needs the symbol _ZN5torch3oldE, which no library of the image has "
            "(it is linked with libtorch.so)"
        )
    ]


def test_a_missing_library_is_named_unless_it_is_the_drivers(extension: ModuleType, tmp_path: Path) -> None:
    own = needs(tmp_path, "fast", "libcuda.so.1", "libtorch_cuda.so", undefined="cuInit other")
    assert extension.problems(own, {}, {}) == [
        "fast.so needs the library libtorch_cuda.so, which the image does not have"
    ]
    own = needs(tmp_path, "fast", "libcuda.so.1", undefined="cuInit other")
    assert extension.problems(own, {}, {}) == [
        "fast.so needs the symbol other, which no library of the image has"
    ]
