"""A lock that somebody edited: whatever its recipe decides, the lock cannot decide otherwise."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.debian import suites
from imagebuilder.errors import ConflictError, LockError
from imagebuilder.layers.system import debs as order
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Wheel
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import agreement, closure, debian
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from imagebuilder.workflow import check_recipe
from imagebuilder.workflow.locking import update_lock
from tests.unit import samples
from tests.unit.samples import RECIPES

Document = dict[str, Any]
DIGEST = f"sha256:{'a' * 64}"
IMAGE: Document = {
    "name": "evil.example/team/base:1",
    "digest": DIGEST,
    "env": {},
    "labels": {},
    "accounts": {},
    "archives": [],
    "layers": [{"digest": DIGEST, "diff_id": DIGEST, "size": 1, "media_type": "application/x"}],
    "packages": [],
}
SOURCE: Document = {"name": "openmpi", "version": "5.0.7", "file": "x.tar.gz", "size": 1, "sha256": "0" * 64}
BUILD: Document = {
    "component": "openmpi",
    "version": "5.0.7",
    "packages": [],
    "system": [],
    "debs": [],
    "wheels": [],
    "sources": [{**SOURCE, "upstream": True}],
}


def named(items: list[Document], name: str) -> Document:
    return next(item for item in items if item["name"] == name)


def put(lock: Document, key: str, **values: Any) -> None:
    lock[key] = {**lock[key], **values}


def rename(lock: Document, key: str, name: str, **values: Any) -> None:
    named(lock[key], name).update(values)


def drop(lock: Document, key: str, name: str) -> None:
    lock[key].remove(named(lock[key], name))


def double(lock: Document, key: str, name: str, **values: Any) -> None:
    item = named(lock[key], name)
    lock[key].insert(lock[key].index(item), {**copy.deepcopy(item), **values})


def add_archive(lock: Document) -> None:
    named(lock["debs"], "bash")["archive"] = "evil"


def reorder(lock: Document) -> None:
    lock["wheels"].reverse()


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An edit of the lock of cuda12-torch, and the key path and words of what is said of it.

    `whole` marks an edit of the file; the others change the section of its platform.
    """

    change: Callable[[Document], object]
    key: str
    words: str
    whole: bool = False


TORCH = "torch-2.10.0-cp313-cp313-manylinux_2_28_x86_64.whl"
EDITS: dict[str, Edit] = {
    "another-suite": Edit(
        change=lambda lock: lock.update(base="ubuntu:noble"), key="base", words="asks for debian:trixie"
    ),
    "an-image-as-base": Edit(
        change=lambda lock: lock.update(image=IMAGE), key="image", words="the recipe's base is debian:trixie"
    ),
    "another-python": Edit(
        change=lambda lock: lock.update(python="3.9"), key="wheels[", words="is not for Python 3.9"
    ),
    "another-name": Edit(
        change=lambda file: file.update(recipe="other"),
        whole=True,
        key="recipe",
        words="is other, and the recipe asks",
    ),
    "another-architecture": Edit(
        change=lambda file: file.update(platforms={"linux/riscv64": samples.section(file)}),
        whole=True,
        key="architecture",
        words="is not one that images are made for",
    ),
    "another-pin": Edit(
        change=lambda lock: put(lock, "pins", torch="1.0"), key="pins.torch", words="have torch 2.10.0"
    ),
    "one-pin-less": Edit(
        change=lambda lock: lock["pins"].pop("nccl"), key="pins", words="does not name nccl"
    ),
    "one-pin-more": Edit(
        change=lambda lock: put(lock, "pins", mpich="4.0"), key="pins.mpich", words="no package of the lock"
    ),
    "without-torch": Edit(
        change=lambda lock: drop(lock, "wheels", "torch"), key="wheels", words="does not have torch"
    ),
    "without-a-requested-wheel": Edit(
        change=lambda lock: drop(lock, "wheels", "mpi4py"), key="wheels", words="`mpi4py==4.1.1` is asked for"
    ),
    "another-file": Edit(
        change=lambda lock: rename(lock, "wheels", "torch", file="evil-1.0-py3-none-any.whl"),
        key="wheels[",
        words="is evil 1.0, and is listed as torch 2.10.0",
    ),
    "another-python-s-file": Edit(
        change=lambda lock: rename(lock, "wheels", "torch", file=TORCH.replace("313", "312")),
        key="wheels[",
        words="is not for Python 3.13",
    ),
    "another-version-of-a-pinned-wheel": Edit(
        change=lambda lock: rename(
            lock, "wheels", "torch", version="2.9.0", file=TORCH.replace("2.10", "2.9")
        ),
        key="wheels",
        words="has torch 2.9.0, and `torch==2.10.0.*` is asked for",
    ),
    "a-wheel-twice": Edit(
        change=lambda lock: double(lock, "wheels", "torch", sha256="1" * 64),
        key="wheels",
        words="has `torch` 2 times",
    ),
    "wheels-in-another-order": Edit(change=reorder, key="wheels", words="is not in order of names"),
    "another-component": Edit(
        change=lambda lock: rename(lock, "wheels", "torch", component="cuda"),
        key="wheels[",
        words="torch belongs to torch",
    ),
    "a-deb-twice": Edit(
        change=lambda lock: double(lock, "debs", "bash", sha256="1" * 64),
        key="debs",
        words="has `bash` 2 times",
    ),
    "another-package-s-path": Edit(
        change=lambda lock: rename(lock, "debs", "bash", path=named(lock["debs"], "dash")["path"]),
        key="debs[",
        words="is not the file of bash",
    ),
    "another-package-s-hash": Edit(
        change=lambda lock: rename(lock, "debs", "bash", sha256=named(lock["debs"], "dash")["sha256"]),
        key="debs[",
        words="has the hash of",
    ),
    "a-foreign-architecture": Edit(
        change=lambda lock: rename(lock, "debs", "bash", architecture="arm64"),
        key="debs[",
        words="bash is for arm64, not amd64",
    ),
    "another-archive": Edit(change=add_archive, key="debs[", words="is from evil"),
    "without-a-requested-package": Edit(
        change=lambda lock: drop(lock, "debs", "rdma-core"), key="debs", words="does not have `rdma-core`"
    ),
    "without-the-c-library": Edit(
        change=lambda lock: drop(lock, "debs", "libc6"), key="debs", words="does not have `libc6`"
    ),
    "one-request-more": Edit(
        change=lambda lock: lock["packages"].append("zsh"), key="packages", words="ask for: zsh"
    ),
    "a-forced-pin": Edit(
        change=lambda lock: lock["overrides"].append(
            {"pin": "nccl", "wanted": "2.27.5", "locked": "2.27.5", "contradicts": []}
        ),
        key="overrides",
        words="is not what the recipe forces, which is nothing",
    ),
    "something-compiled": Edit(
        change=lambda lock: lock.update(builds=[BUILD]), key="builds", words="compiles, which is nothing"
    ),
    "an-unknown-thing-compiled": Edit(
        change=lambda lock: lock.update(builds=[{**BUILD, "component": "evil"}]),
        key="builds",
        words="compiles, which is nothing",
    ),
    "another-format": Edit(
        change=lambda file: file.update(format=2),
        whole=True,
        key="",
        words="was written by a newer imagebuilder",
    ),
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for path in RECIPES.glob("cuda12-torch.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "cuda12-torch.yaml"


def changed(recipe: Path, change: Callable[[Document], object], *, whole: bool = False) -> None:
    place = locks.path_for(recipe)
    document = json.loads(place.read_text())
    change(document if whole else samples.section(document))
    place.write_text(json.dumps(document))


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_lock_is_refused_with_its_file_and_key(recipe: Path, edit: Edit) -> None:
    changed(recipe, edit.change, whole=edit.whole)
    with pytest.raises(LockError) as caught:
        check_recipe(recipe)
    said = [problem for problem in caught.value.problems if edit.words in problem.message]
    assert said, str(caught.value)
    file, *keys = said[0].where.split(": ")
    assert file == str(locks.path_for(recipe))
    if edit.key:
        assert keys[0].startswith("platforms.linux/")
        assert keys[1].startswith(edit.key)
    assert f"imagebuilder lock {recipe}" in said[0].hint


def test_every_shipped_lock_agrees_with_its_recipe() -> None:
    examples = RECIPES.with_name("examples").glob("*/recipes/*.yaml")
    for path in sorted([*RECIPES.glob("*.yaml"), *examples]):
        check_recipe(path)


def test_all_that_is_wrong_is_said_at_once(recipe: Path) -> None:
    changed(recipe, lambda lock: lock.update(base="ubuntu:noble", packages=[]))
    changed(recipe, lambda file: file.update(recipe="x"), whole=True)
    changed(recipe, lambda lock: drop(lock, "wheels", "torch"))
    with pytest.raises(LockError) as caught:
        check_recipe(recipe)
    keys = {problem.where.rpartition(": ")[2] for problem in caught.value.problems}
    assert {"base", "recipe", "wheels", "pins.torch", "packages"} <= keys


def test_a_lock_alone_is_held_to_what_needs_no_recipe(recipe: Path) -> None:
    changed(recipe, EDITS["another-file"].change)
    with pytest.raises(LockError, match=r"is evil 1\.0"):
        lockfile.read(locks.path_for(recipe))


def test_a_recipe_without_a_lock_is_checked_and_with_locked_it_is_refused(recipe: Path) -> None:
    locks.path_for(recipe).unlink()
    check_recipe(recipe)
    with pytest.raises(LockError, match="there is no lock"):
        check_recipe(recipe, locked=True)


def test_nothing_of_an_edited_lock_is_kept(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the recipe's own checksum in it, the lock would count as current."""
    given: list[object] = []

    def make(_recipe: object, _site: object, previous: object, *_rest: object) -> lockfile.LockFile:
        given.append(previous)
        return lockfile.read(RECIPES / "cuda12-torch.lock")

    monkeypatch.setattr("imagebuilder.resolve.locking.make_locks", make)
    changed(recipe, EDITS["another-suite"].change)
    update_lock(recipe, None, None, Store(tmp_path / "store"), tools="host")
    assert given == [None]
    check_recipe(recipe)
    update_lock(recipe, None, None, Store(tmp_path / "store"), tools="host")
    assert given[1] is not None


def test_packages_without_a_c_library_are_an_error_of_the_lock() -> None:
    with pytest.raises(LockError, match="there is no libc6"):
        debian.glibc((samples.deb("bash"),))
    with pytest.raises(LockError, match="is not a version of the C library"):
        debian.glibc((samples.deb("libc6", "9" * 30),))


# A base from a registry, and what is compiled


def test_a_base_is_the_image_that_the_recipe_names() -> None:
    image = samples.base_image()
    recipe = samples.recipe(base={"image": image.name, "digest": image.digest}, pins={})
    lock = samples.lock(image=image, pins={}, wheels=(), debs=())

    def keys(lock: locks.Lock) -> set[str]:
        with pytest.raises(LockError) as caught:
            agreement.require(select(recipe), lock, "x.lock")
        return {problem.where for problem in caught.value.problems}

    held = {"x.lock: image", "x.lock: image.name", "x.lock: image.digest"}
    assert not held & keys(lock)
    other = image.model_copy(update={"name": "evil.example/x:1", "digest": f"sha256:{'1' * 64}"})
    assert keys(lock.model_copy(update={"image": other})) >= {"x.lock: image.name", "x.lock: image.digest"}
    assert "x.lock: image" in keys(lock.model_copy(update={"image": None}))


# Once the packages are at hand


def wheels(*names: str, component: str = "python") -> tuple[Wheel, ...]:
    return tuple(samples.wheel(name, component=component) for name in sorted(names))


def asked(*requirements: str, **components: str) -> closure.Asked:
    return closure.Asked(
        requirements=requirements,
        variables=agreement.environment("3.13", "amd64"),
        components=components,
    )


def needs(**texts: str) -> dict[str, tuple[Requirement, ...]]:
    return {name: tuple(map(Requirement, text.split("|"))) if text else () for name, text in texts.items()}


def problems(there: tuple[Wheel, ...], requires: closure.Requires, question: closure.Asked) -> list[str]:
    try:
        closure.require(there, requires, question, "wheels")
    except LockError as error:
        return [problem.message for problem in error.problems]
    return []


def test_wheels_are_what_the_recipe_asks_for_and_what_these_require() -> None:
    requires = needs(
        a='b>=1; python_version >= "3"|c; sys_platform == "win32"', b="d[x]", d='e; extra == "x"', e=""
    )
    assert problems(wheels("a", "b", "d", "e"), requires, asked("a")) == []
    assert problems(wheels("a", "b", "d"), requires, asked("a")) == ["lacks e, which d 1.0 requires"]
    more = problems(wheels("a", "b", "d", "e", "evil"), {**requires, "evil": ()}, asked("a"))
    assert more == ["nothing in the lock requires evil 1.0"]
    newer = needs(a="b>=2", b="")
    assert problems(wheels("a", "b"), newer, asked("a")) == ["has b 1.0, and a 1.0 requires b>=2"]


def test_a_wheel_is_filed_under_the_component_that_brings_it_in() -> None:
    there = (*wheels("a", component="torch"), *wheels("b"))
    assert problems(there, needs(a="b", b=""), asked("a", a="torch")) == ["b belongs to torch, not to python"]


def test_where_metadata_is_missing_no_wheel_is_one_too_many() -> None:
    assert problems(wheels("a", "b"), {"a": None, "b": ()}, asked("a")) == []


def control(name: str, depends: str = "", more: str = "") -> order.Package:
    return order.parse_package(
        f"Package: {name}\nVersion: 1.0-1\nArchitecture: amd64\nDepends: {depends}\n{more}"
    )


def test_a_control_file_says_the_same_as_the_lock() -> None:
    assert order.problems([control("bash")], [samples.deb("bash")]) == []
    (said,) = order.problems([control("bash")], [samples.deb("bash", "2.0-1")])
    assert said.endswith("holds bash 1.0-1 amd64, not bash 2.0-1 amd64")
    assert order.problems([control("evil")], [samples.deb("bash")])


def test_a_system_is_what_was_asked_for_and_what_that_depends_on() -> None:
    there = [
        control("a", "b | x, virtual"),
        control("b"),
        control("c", more="Provides: virtual\n"),
        control("d"),
    ]
    assert order.closure_problems(there, ["a", "d"]) == []
    assert order.closure_problems(there, ["a"]) == ["nothing in the lock requires d"]
    assert order.closure_problems(there[::2], ["a"]) == ["lacks b or x, which a depends on"]


def test_names_that_only_others_provide_are_refused_when_a_recipe_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu-mpi.yaml"
    path.write_text((RECIPES / "cpu-mpi.yaml").read_text() + "apt: [mail-transport-agent]\n")
    monkeypatch.setattr(
        "imagebuilder.resolve.locking.make_locks", lambda *_: lockfile.read(RECIPES / "cpu-mpi.lock")
    )
    with pytest.raises(ConflictError, match=r"`mail-transport-agent` is a virtual package"):
        update_lock(path, None, None, Store(tmp_path / "store"), tools="host")
    assert not locks.path_for(path).exists()


def test_a_plan_of_an_unknown_component_leaves_it_out() -> None:
    build = locks.Build.model_validate_json(json.dumps({**BUILD, "component": "evil"}))
    lock = samples.lock(builds=(build,))
    assert plans.plan(select(samples.recipe()), lock, ()).layers


def compiled() -> tuple[Recipe, locks.Build]:
    """A recipe that compiles Open MPI from Debian's source, and its build in a lock."""
    recipe = samples.recipe(pins={"openmpi": "5.0.7"}, build=("openmpi",))
    (asked,) = request(select(recipe)).builds
    names = sorted({"libc6", *asked.packages, *suites.facts("debian", "trixie").packages})
    source = {**SOURCE, "version": "5.0.7-1", "suite": "trixie", "file": "openmpi_5.0.7.orig.tar.bz2"}
    source["path"] = f"pool/main/o/openmpi/{source['file']}"
    build = {**BUILD, "packages": asked.packages, "sources": (locks.Source.model_validate(source),)}
    debs = tuple(samples.deb(name) for name in names)
    return recipe, locks.Build.model_validate({**build, "system": (), "debs": debs, "wheels": ()})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({}, ""),
        ({"component": "evil"}, "builds"),
        ({"version": "4.0.0"}, "builds[0].version"),
        ({"packages": ("make",)}, "builds[0].packages"),
        ({"debs": ()}, "builds[0].debs"),
        ({"wheels": (samples.wheel("evil", component="torch"),)}, "builds[0].wheels[0].component"),
        ({"sources": ()}, "builds[0].sources"),
    ],
)
def test_what_is_compiled_is_what_the_recipe_compiles(change: dict[str, object], key: str) -> None:
    recipe, build = compiled()
    lock = samples.lock(builds=(build.model_copy(update=change),), wheels=(), debs=())
    with pytest.raises(LockError) as caught:
        agreement.require(select(recipe), lock, "x.lock")
    found = {problem.where.removeprefix("x.lock: ") for problem in caught.value.problems}
    assert key in found or not key
    assert bool(key) == any(name.startswith("builds") for name in found)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "evil"},
        {"version": "4.1.0-1"},
        {"suite": "sarge"},
        {"suite": "", "path": "", "upstream": False, "name": "mpi4py"},
        {"upstream": True, "suite": "", "path": "", "version": "9.9"},
    ],
)
def test_a_source_is_that_of_its_component(change: dict[str, object]) -> None:
    recipe, build = compiled()
    source = build.sources[0].model_copy(update=change)
    lock = samples.lock(builds=(build.model_copy(update={"sources": (source,)}),), wheels=())
    with pytest.raises(LockError, match=r"builds\[0\]\.sources: is not the one source of openmpi 5\.0\.7"):
        agreement.require(select(recipe), lock, "x.lock")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": ("nowhere",)}, "names `nowhere`, which is not among the debs of the lock"),
        ({"debs": (samples.deb("python3"),)}, "`python3` is among the debs of the lock too"),
        ({"packages": ("b", "a")}, "is not in order of names"),
    ],
)
def test_a_build_does_not_contradict_its_lock(change: dict[str, object], words: str) -> None:
    _, build = compiled()
    text = lockfile.dumps(LockFile(sections=(samples.lock(builds=(build.model_copy(update=change),)),)))
    with pytest.raises(LockError) as caught:
        lockfile.loads(text, "x.lock")
    assert words in str(caught.value)
