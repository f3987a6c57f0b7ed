"""Requirement files and locks: what resolving makes of the files, and when a lock no longer fits them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import catalog, recipe
from imagebuilder.errors import ConflictError, LockError
from imagebuilder.host.site import detect
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Wheel
from imagebuilder.recipe import requirements
from imagebuilder.resolve import agreement, filepins
from imagebuilder.resolve.python import resolve_wheels
from imagebuilder.resolve.request import Request, request
from imagebuilder.workflow import check_recipe, read_locks, read_recipe
from imagebuilder.workflow.source import RecipeSource
from tests.support.wheelfolder import put, put_index, torch_world
from tests.unit import samples

GLIBC = "2.41"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The shipped recipe and lock of cpu-mpi, with a requirements file that asks for its numpy."""
    made = tmp_path / "cpu-mpi.yaml"
    shutil.copy(samples.RECIPES / "cpu-mpi.yaml", made)
    with made.open("a", encoding="utf-8") as file:
        file.write("requirements: [requirements.txt]\n")
    (lock,) = lockfile.read(samples.RECIPES / "cpu-mpi.lock").sections
    numpy = next(wheel for wheel in lock.wheels if wheel.name == "numpy")
    text = f"numpy=={numpy.version} --hash=sha256:{numpy.sha256}\n-c limits.txt\n"
    (tmp_path / "requirements.txt").write_text(text, encoding="utf-8")
    (tmp_path / "limits.txt").write_text("mpi4py<5\n", encoding="utf-8")
    selection, inputs = read_recipe(made)
    fields = {
        "inputs": inputs["linux/amd64"],
        "requirements": agreement.recorded(request(selection)),
    }
    lockfile.write(LockFile(sections=(lock.model_copy(update=fields),)), locks.path_for(made))
    return made


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    place = locks.path_for(path)
    document = json.loads(place.read_text(encoding="utf-8"))
    change(samples.section(document))
    place.write_text(json.dumps(document), encoding="utf-8")


def refusal(path: Path) -> str:
    with pytest.raises(LockError) as caught:
        check_recipe(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_a_change_without_a_meaning_leaves_the_lock_as_it_is(path: Path) -> None:
    check_recipe(path)
    file = path.with_name("requirements.txt")
    file.write_text(f"# a comment\n\n{file.read_text()}", encoding="utf-8")
    check_recipe(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "limits.txt").write_text("mpi4py<4.2\n"),
        lambda folder: (folder / "requirements.txt").write_text("numpy\n-c limits.txt\n"),
    ],
    ids=["a-constraint", "a-hash"],
)
def test_a_file_that_changed_is_named(path: Path, change: Callable[[Path], object]) -> None:
    change(path.parent)
    assert refusal(path) == (
        "cpu-mpi.lock: requirements.txt asks for something else than when the recipe was locked\n"
        "  -> run: imagebuilder lock cpu-mpi.yaml"
    )


CHANGED = "cpu-mpi.lock: requirements.txt asks for something else than when the recipe was locked"
SECTION = "cpu-mpi.lock: platforms.linux/amd64"
NOT_LISTED = f"{SECTION}: requirements: does not list the requirement files of the recipe"
URL, MARKER = "numpy @ https://evil.example/n.whl", "numpy; os_name == 'nt'"


def of_file(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda lock: lock["requirements"][0].update(values)


EDITS: Mapping[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "asked": (of_file(asked=[]), CHANGED),
    "limits": (of_file(limits="0" * 64), CHANGED),
    "no-file": (lambda lock: lock.pop("requirements"), NOT_LISTED),
    "another-file": (of_file(file="other.txt"), NOT_LISTED),
    "another-wheel": (
        lambda lock: next(item for item in lock["wheels"] if item["name"] == "numpy").update(sha256="0" * 64),
        f"{SECTION}: wheels[1].sha256: is not among the hashes of requirements.txt:1",
    ),
    "a-url": (
        of_file(asked=[URL]),
        f"{SECTION}: requirements[0].asked: `{URL}` is not a requirement in normal form",
    ),
    "a-marker": (
        of_file(asked=[MARKER]),
        f"{SECTION}: requirements[0].asked: `{MARKER}` is not a requirement in normal form",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_lock_is_refused(path: Path, name: str) -> None:
    change, said = EDITS[name]
    edit(path, change)
    assert said in refusal(path).splitlines()


def test_a_forged_lock_that_breaks_a_constraint_is_refused(path: Path) -> None:
    """Somebody writes the lock of another file, with all its checksums."""
    path.with_name("limits.txt").write_text("mpi4py<4\n", encoding="utf-8")
    selection, inputs = read_recipe(path)
    recorded = [item.model_dump(mode="json") for item in agreement.recorded(request(selection))]
    edit(path, lambda lock: lock.update(inputs=inputs["linux/amd64"], requirements=recorded))
    assert refusal(path) == (
        "cpu-mpi.lock: platforms.linux/amd64: wheels[0].version: is 4.1.1, and limits.txt:1 limits it: "
        "`mpi4py<4`\n  -> run: imagebuilder lock cpu-mpi.yaml"
    )


def test_recipe_and_lock_of_an_image_need_no_requirement_files_and_open_none(path: Path) -> None:
    source = RecipeSource(
        recipe=path.read_text(encoding="utf-8"), lock=locks.path_for(path).read_text(encoding="utf-8")
    )
    lock, _ = source.read()
    assert lock == read_locks(path).file.sections[0]
    assert "numpy" in " ".join(source.request("linux/amd64").of_wheels)


def test_a_lock_that_came_with_an_image_must_list_the_files(path: Path) -> None:
    edit(path, lambda lock: lock.pop("requirements"))
    source = RecipeSource(
        recipe=path.read_text(encoding="utf-8"), lock=locks.path_for(path).read_text(encoding="utf-8")
    )
    with pytest.raises(LockError):
        source.read()


# Resolving


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


def asked(folder: Path, text: str, head: str = "", **files: str) -> Request:
    (folder / "requirements.txt").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    written = folder / "x.yaml"
    written.write_text(
        f'name: x\nbase: debian:trixie\npython: "3.13"\n{head}requirements: [requirements.txt]\n',
        encoding="utf-8",
    )
    found, places = recipe.read(written, catalog.names())
    demands = requirements.read(found, folder, places, agreement.environment("3.13", "amd64"))
    return request(replace(catalog.select(found, places), demands={"linux/amd64": demands}))


def resolved(wanted: Request, index: str, folder: Path) -> dict[str, Wheel]:
    site = folder / "site.yaml"
    site.write_text(f"index: '{index}'\n", encoding="utf-8")
    wheels, _ = resolve_wheels(wanted, GLIBC, detect(site))
    return {wheel.name: wheel for wheel in wheels}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_constraint_limits_what_something_else_asks_for_and_asks_for_nothing(tmp_path: Path) -> None:
    index = put_index(tmp_path / "index", ("tool", "1.0"), ("tool", "2.0"), ("pip", "25.3"), ("other", "1.0"))
    wanted = asked(tmp_path, "tool\n-c limits.txt\n", limits="tool<2\nother==1.0\n")
    found = resolved(wanted, index, tmp_path)
    assert {name: wheel.version for name, wheel in found.items()} == {"tool": "1.0", "pip": "25.3"}


def test_of_several_files_the_one_is_taken_whose_hash_is_allowed(tmp_path: Path) -> None:
    index = put_index(tmp_path / "index", ("tool", "1.0"), ("pip", "25.3"))
    special = put(tmp_path / "index" / "tool", "tool", "1.0", tag="cp313-cp313-manylinux_2_28_x86_64")
    plain = tmp_path / "index" / "tool" / "tool-1.0-py3-none-any.whl"
    links = "".join(
        f'<a href="{file.name}#sha256={sha256(file)}">{file.name}</a>' for file in (plain, special)
    )
    (tmp_path / "index" / "tool" / "index.html").write_text(links, encoding="utf-8")
    assert resolved(asked(tmp_path, "tool==1.0\n"), index, tmp_path)["tool"].file == special.name
    wanted = asked(tmp_path, f"tool==1.0 --hash=sha256:{sha256(plain)}\n")
    assert resolved(wanted, index, tmp_path)["tool"].file == plain.name


@pytest.mark.parametrize("told", [True, False], ids=["index-tells-hashes", "index-tells-none"])
def test_a_file_whose_hash_is_not_allowed_is_refused(tmp_path: Path, *, told: bool) -> None:
    index = put_index(tmp_path / "index", ("tool", "1.0"), ("pip", "25.3"))
    wheel = tmp_path / "index" / "tool" / "tool-1.0-py3-none-any.whl"
    if told:
        link = f'<a href="{wheel.name}#sha256={sha256(wheel)}">{wheel.name}</a>'
        wheel.with_name("index.html").write_text(link, encoding="utf-8")
    with pytest.raises(ConflictError) as caught:
        resolved(asked(tmp_path, f"pip\ntool==1.0 --hash=sha256:{'0' * 64}\n"), index, tmp_path)
    assert str(caught.value).removeprefix(f"{tmp_path}/") == (
        "requirements.txt:2: no file of tool 1.0 has a hash that is allowed here: the index offers "
        f"{wheel.name} (sha256:{sha256(wheel)[:12]}...)\n"
        "  -> the index has other files than the ones that were locked; if they are right, "
        "write the requirement file again"
    )


def test_a_conflict_with_a_pin_names_both_files_and_lines(tmp_path: Path) -> None:
    """A range, which only the solver can hold against a pin."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    torch_world(folder)
    head = 'pins:\n  cuda: "12.8"\n  torch: "2.10.0"\n'
    wanted = asked(tmp_path, "# needs an older one\ntorch<2.10\n", head)
    site = tmp_path / "site.yaml"
    site.write_text(f"wheel_folders: ['{folder}']\nno_index: true\n", encoding="utf-8")
    with pytest.raises(ConflictError) as caught:
        resolve_wheels(wanted, GLIBC, detect(site))
    assert str(caught.value) == (
        f"{tmp_path}/requirements.txt:2: `torch<2.10` clashes: {tmp_path}/x.yaml:6: pins.torch asks for "
        "torch==2.10.0.*\n  -> torch 2.10.0 would work"
    )


def test_a_forced_pin_stands_against_a_file(tmp_path: Path) -> None:
    head = 'pins:\n  cuda: "12.8"\n  torch: "2.10.0"\noverride: [torch]\n'
    wanted = asked(tmp_path, "torch==2.9.1\n", head)
    filepins.require([wanted])
    assert [text for text in wanted.of_wheels if text.startswith("torch")] == ["torch==2.10.0.*"]


def test_a_component_that_only_a_file_names_is_noted(tmp_path: Path) -> None:
    wanted = asked(tmp_path, "torch>=2.9\nnumpy\n")
    lock = samples.lock(wheels=(samples.wheel("numpy"), samples.wheel("torch", "2.10.0")))
    assert list(filepins.notes(wanted, lock)) == [
        (
            f"`torch>=2.9` ({tmp_path}/requirements.txt:1) brings in torch, which is not pinned: "
            'write `torch: "2.10.0"` under `pins:`, so that the smoke test checks it'
        )
    ]


def test_the_checksum_is_the_same_with_the_files_and_with_what_a_lock_keeps_of_them(tmp_path: Path) -> None:
    wanted = asked(tmp_path, f"b\na==1 --hash=sha256:{'1' * 64}\n-c limits.txt\n", limits="c<1\n")
    (item,) = agreement.recorded(wanted)
    demands = requirements.FileDemands.recorded(item.file, item.asked, item.limits)
    selection = replace(wanted.selection, demands={"linux/amd64": (demands,)})
    assert request(selection).checksum() == wanted.checksum()
    other = replace(wanted.selection, demands={"linux/amd64": (replace(demands, limits="0" * 64),)})
    assert request(other).checksum() != wanted.checksum()
