"""`slim: true`: what is left out, where that is refused, and what stays as in other images."""

from __future__ import annotations

import csv
import io
import tarfile
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core import files
from imagebuilder.core.progress import no_advance
from imagebuilder.errors import InputError
from imagebuilder.layers.system import install
from imagebuilder.layers.system.split import reduced, split
from imagebuilder.layers.wheels.file import read_wheel
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.layers.wheels.placement import VenvLayout, place
from imagebuilder.lock.model import Deb
from imagebuilder.plan import OsPart, WheelLayer, rootfs, slim
from imagebuilder.plan.render import render
from imagebuilder.plan.slim import Slim
from imagebuilder.recipe import load
from imagebuilder.store import Store
from tests.support.wheels import SITE, locked, make_wheel, unpack
from tests.unit import samples
from tests.unit.test_groups import deb
from tests.unit.test_layer_split import Item, _pieces, folder, link, names, root
from tests.unit.test_layer_system import package

UCX = (
    deb("libucx0", "ucx"),
    deb("libhsa-runtime64-1", "rocr-runtime"),
    deb("libllvm17t64", "llvm-toolchain-17"),
)
NO_LIBRARY = Slim(leave_out=("/lib/x*",), keep=())


def planned(debs: tuple[Deb, ...] = UCX, asked: tuple[str, ...] = (), **changes: object) -> plans.Plan:
    wheels = tuple(
        samples.wheel(name, size=plans.OWN_LAYER_BYTES) for name in ("numpy", "mpi4py", "nvidia-nvshmem-cu12")
    )
    lock = samples.lock(debs=debs, wheels=wheels, packages=asked)
    recipe = samples.recipe(**changes)
    return plans.plan(select(recipe), lock, rootfs.image_files(recipe, {}))


@pytest.mark.parametrize(
    ("path", "gone"),
    [
        ("/usr/share/doc/ucx/NEWS.gz", True),
        ("/usr/share/doc/ucx/copyright", False),
        ("/usr/share/common-licenses/GPL-2", False),
        ("/usr/share/locale/de/LC_MESSAGES/apt.mo", True),
        ("/usr/share/locale/locale.alias", False),
        ("/usr/share/man/man1/ls.1.gz", True),
        ("/usr/share/manual", False),
        ("/usr/lib/x86_64-linux-gnu/libLLVM-17.so.1", True),
        ("/usr/lib/llvm-17/lib/libLLVM.so", True),
        ("/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1", True),
        ("/usr/lib/x86_64-linux-gnu/ucx/libuct_rocm.so.0", True),
        ("/usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0", False),
        ("/usr/lib/x86_64-linux-gnu/libdrm.so.2", False),
    ],
)
def test_documentation_and_the_libraries_of_rocm_go_and_licences_stay(path: str, gone: bool) -> None:
    assert slim.debian().leaves_out(path) == gone


def test_a_link_below_the_folder_of_licences_stays_since_it_may_lead_to_one() -> None:
    assert not slim.debian().leaves_out("/usr/share/doc/libgcc-s1", is_link=True)
    assert slim.debian().leaves_out("/usr/share/man/man1/awk.1.gz", is_link=True)


def test_dpkg_is_told_of_documentation_and_not_of_libraries_that_another_package_may_need() -> None:
    recipe = samples.recipe(slim=True)
    entries = {entry.path: entry for entry in rootfs.image_files(recipe, {})}
    lines = entries["/etc/dpkg/dpkg.cfg.d/imagebuilder-slim"].text.splitlines()
    assert {"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright"} <= set(lines)
    assert lines.index("path-exclude=/usr/share/doc/*") < lines.index(
        "path-include=/usr/share/doc/*/copyright"
    )
    assert not any("LLVM" in line or "libz3" in line for line in lines)
    assert not any("slim" in entry.path for entry in rootfs.image_files(samples.recipe(), {}))


def test_the_request_to_resolvers_stays_the_same() -> None:
    assert samples.recipe(slim=True).checksum() == samples.recipe().checksum()


def test_only_layers_with_something_to_leave_out_are_others() -> None:
    plain, thin = (planned(slim=value).layers for value in (False, True))
    same = {layer.title for layer in thin} & {layer.title for layer in plain}
    keys = {layer.key for layer in plain}
    assert {layer.title for layer in thin if layer.key in keys} == {"mpi4py 1.0"}
    assert {"numpy 1.0", "nvidia-nvshmem-cu12 1.0"} <= same
    systems = [layer for layer in (*plain, *thin) if isinstance(layer, OsPart)]
    assert len({part.likely for part in systems}) == len(systems)


def test_a_key_has_the_patterns() -> None:
    wheels = (samples.wheel("numpy"),)
    some, other = (
        WheelLayer(component="x", wheels=wheels, python="3.13", slim=((wheels[0].file, Slim((word,), ())),))
        for word in ("a", "b")
    )
    assert some.key != other.key
    system = next(layer.system for layer in planned(slim=True).layers if isinstance(layer, OsPart))
    layers = [replace(system, slim=rules) for rules in (None, Slim(("a",), ()), Slim(("a",), ("b",)))]
    assert len({layer.key for layer in layers}) == len(layers)


def test_not_together_with_devel(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text('name: both\nbase: debian:trixie\npython: "3.13"\ndevel: true\nslim: true\n')
    with pytest.raises(InputError) as caught:
        load(path, frozenset())
    assert str(caught.value) == (
        f"{path}:5: slim: is for images that run jobs, and `devel: true` for those that compile\n"
        "  -> keep one of the two"
    )


def test_a_library_that_the_recipe_asks_for_is_not_left_out() -> None:
    with pytest.raises(InputError) as caught:
        planned(asked=("libllvm17t64=1.0-1", "libucx0"), slim=True)
    assert str(caught.value) == (
        "sample: apt: libllvm17t64: libllvm17t64 is asked for, and `slim: true` leaves out its libraries\n"
        "  -> leave it out of `apt:`, or remove `slim: true`"
    )
    planned(asked=("libllvm17t64", "libucx0"))


def test_a_library_that_another_package_than_ucx_needs_is_not_left_out() -> None:
    layer = planned(slim=True).system
    ucx = package("libucx0", depends="libhsa-runtime64-1 (>= 5)")
    rocm = package("libhsa-runtime64-1", depends="llvm, libc6"), package("libllvm17t64", provides="llvm")
    either = package("tool", depends="llvm | toy"), package("toy")
    install._refuse_needed(layer, [ucx, *rocm, *either])
    with pytest.raises(InputError) as caught:
        install._refuse_needed(layer, [ucx, *rocm, package("clang-17", pre="llvm | gone"), package("x")])
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "slim: leaves out the libraries of libllvm17t64, which clang-17 needs\n"
        "  -> leave what brings clang-17 out of `apt:`, or remove `slim: true`"
    )


def left(*items: Item, rules: Slim = NO_LIBRARY, base: Collection[str] | None = None) -> list[str]:
    with tempfile.TemporaryFile() as file:
        file.write(root(*items).getvalue())
        part = reduced(file, rules, base) if base is not None else split(file, {}, rules)[plans.STATE]
        return names(b"".join(_pieces(part)), folders=True)


def test_files_go_and_folders_stay() -> None:
    assert left(Item(path="lib/x/1"), Item(path="lib/y"), folder("lib/xx")) == [
        ".",
        "lib",
        "lib/x",
        "lib/xx",
        "lib/y",
    ]


def test_a_file_stays_for_the_sake_of_its_other_name() -> None:
    hard = link("lib/y", "./lib/x1", tarfile.LNKTYPE)
    assert left(Item(path="lib/x1", content=b"1"), hard) == [".", "lib", "lib/x1", "lib/y"]
    assert left(Item(path="lib/a"), link("lib/x1", "./lib/a", tarfile.LNKTYPE)) == [".", "lib", "lib/a"]


def test_on_a_base_its_own_files_and_whiteouts_stay() -> None:
    items = (Item(path="lib/x1"), Item(path="lib/x2"), Item(path="lib/.wh.x3"))
    everything = Slim(leave_out=("/lib/*",), keep=())
    assert left(*items, rules=everything, base={"lib/x2"}) == [".", "lib", "lib/.wh.x3", "lib/x2"]


def test_record_lists_what_is_there(tmp_path: Path) -> None:
    inside = {"numpy/__init__.py": b"1", "numpy/a/tests/test_a.py": b"2", "numpy/a/tests/_natype.py": b"3"}
    path = make_wheel(tmp_path, inside, name="numpy")
    wheel, store = locked(path), Store(tmp_path / "store")
    layer = WheelLayer(
        component="python", wheels=(wheel,), python="3.13", slim=slim.of_wheels([wheel, samples.wheel("x")])
    )
    files = unpack(build_wheel_layer(layer, {wheel.sha256: path}, store, no_advance), store)
    record = files[f"{SITE}/numpy-1.0.dist-info/RECORD"].data.decode()
    listed = {row[0] for row in csv.reader(io.StringIO(record))}
    there = {name.removeprefix(f"{SITE}/") for name, entry in files.items() if entry.kind == "file"}
    assert listed == there
    assert {name for name in there if name.startswith("numpy/")} == {
        "numpy/__init__.py",
        "numpy/a/tests/_natype.py",
    }


def test_metadata_stays_whatever_a_pattern_or_a_name_says(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"demo-1.0.dist-info/tests/x.a": b"1", "demo/tests/x.a": b"2", "*": b"3"})
    placed = place(read_wheel(path.name, path), VenvLayout(venv="/v", python="3"), Slim(("*",), ()))
    site = "v/lib/python3/site-packages/demo-1.0.dist-info"
    assert [item.path.removeprefix(f"{site}/") for item in placed] == [
        *("INSTALLER", "METADATA", "RECORD", "WHEEL", "tests/x.a"),
    ]


def test_a_wheel_of_another_name_loses_nothing() -> None:
    assert (
        slim.of_wheels([samples.wheel(name) for name in ("numpy-tests", "my-triton", "nvidia-nvshmem")]) == ()
    )


def test_a_dockerfile_is_refused() -> None:
    with pytest.raises(InputError, match="`slim: true` is not for Dockerfiles"):
        render(planned(slim=True), files.template("Dockerfile.j2"))


def test_each_entry_has_a_reason() -> None:
    lists = slim._lists()
    assert all(len(each.reason) > 20 for each in (*lists.debian.values(), *lists.wheels.values()))
