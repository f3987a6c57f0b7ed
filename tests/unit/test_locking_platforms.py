"""Locking for several platforms: uv resolves from folders of tiny wheels, apt is stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Archives, Deb, Lock
from imagebuilder.resolve import debian
from imagebuilder.resolve.locking import make_locks
from imagebuilder.resolve.newest import newest_for_all
from imagebuilder.resolve.request import Request
from tests.support.wheelfolder import put
from tests.unit import samples

AMD, ARM = "cp313-cp313-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_28_aarch64"
RECIPE = samples.recipe(platforms=("linux/amd64", "linux/arm64"), pins={"gcc": "14"}, pip=("numpy", "only"))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """An index with a package for each platform, one of which has a newer version for arm64 alone."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for tag in (AMD, ARM):
        put(folder, "numpy", "2.3.0", tag=tag)
    put(folder, "numpy", "2.4.0", tag=ARM)
    put(folder, "only", "1.0", ["armhelp; platform_machine == 'aarch64'"])
    put(folder, "armhelp", "1.0")
    put(folder, "pip", "25.3")
    return folder


@pytest.fixture
def site(wheels: Path) -> Site:
    return Site(no_index=True, wheel_folders=(str(wheels),))


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Version of gcc by architecture, which a test may change; all else is the same on both."""
    gcc = {"amd64": "14.2.0-19", "arm64": "14.2.0-19+b1"}

    def resolve(asked: Request, _site: object) -> tuple[tuple[Deb, ...], Archives]:
        versions = {
            "gcc-14": gcc[asked.architecture],
            "libc6": "2.41-12",
            "openssh-server": "1:10.0p1-7",
            "python3": "3.13.5-1",
            "python3.13": "3.13.5-2",
        }
        debs = (samples.deb(name, version) for name, version in versions.items())
        return tuple(deb.model_copy(update={"architecture": asked.architecture}) for deb in debs), {}

    monkeypatch.setattr(debian, "resolve_debs", resolve)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv"))
    return gcc


def versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


def files(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.file.rpartition("_")[2] for wheel in lock.wheels}


def test_platforms_take_the_same_versions_where_they_exist(site: Site) -> None:
    amd, arm = make_locks(select(RECIPE), site, None, None).sections
    assert versions(amd) == {"numpy": "2.3.0", "only": "1.0", "pip": "25.3"}
    assert versions(arm) == {"armhelp": "1.0", "numpy": "2.3.0", "only": "1.0", "pip": "25.3"}
    assert (files(amd)["numpy"], files(arm)["numpy"]) == ("64.whl", "aarch64.whl")
    assert [deb.architecture for deb in arm.debs] == ["arm64"] * 5
    assert amd.inputs != arm.inputs
    assert amd.pins == arm.pins


def test_a_version_that_one_platform_lacks_moves_there_alone(site: Site, wheels: Path) -> None:
    put(wheels, "numpy", "2.5.0", tag=AMD)
    put(wheels, "only", "0.9")
    amd, arm = make_locks(select(RECIPE), site, None, None).sections
    assert (versions(amd)["numpy"], versions(arm)["numpy"]) == ("2.5.0", "2.4.0")
    assert versions(amd)["only"] == versions(arm)["only"] == "1.0"


def test_one_more_platform_leaves_the_other_as_it_was(site: Site, wheels: Path) -> None:
    single = RECIPE.model_copy(update={"platforms": ("linux/amd64",)})
    before = make_locks(select(single), site, None, None)
    put(wheels, "only", "1.1")
    both = make_locks(select(RECIPE), site, before, None)
    assert both.sections[0] is before.sections[0]
    assert versions(both.sections[1])["only"] == "1.0"
    again = make_locks(select(single), site, both, None)
    assert again == before


def test_locks_that_fit_stay_and_an_upgrade_moves_both(site: Site, wheels: Path) -> None:
    first = make_locks(select(RECIPE), site, None, None)
    put(wheels, "only", "1.1")
    assert make_locks(select(RECIPE), site, first, None) == first
    for upgrade in ((), ("only",)):
        moved = make_locks(select(RECIPE), site, first, upgrade)
        assert [versions(lock)["only"] for lock in moved.sections] == ["1.1", "1.1"]
        assert [versions(lock)["numpy"] for lock in moved.sections] == ["2.3.0", "2.3.0"]


def test_what_only_one_platform_has_can_be_upgraded(site: Site, wheels: Path) -> None:
    first = make_locks(select(RECIPE), site, None, None)
    put(wheels, "armhelp", "1.1")
    moved = make_locks(select(RECIPE), site, first, ("armhelp",))
    assert moved.sections[0] is first.sections[0]
    assert versions(moved.sections[1])["armhelp"] == "1.1"
    with pytest.raises(ConflictError, match="`nothing` cannot be upgraded"):
        make_locks(select(RECIPE), site, first, ("nothing",))


def test_a_conflict_on_one_platform_names_it(site: Site) -> None:
    recipe = RECIPE.model_copy(update={"pip": ("numpy==2.4.0",)})
    with pytest.raises(ConflictError) as caught:
        make_locks(select(recipe), site, None, None)
    (problem,) = caught.value.problems
    assert problem.message.startswith("on linux/amd64: ")
    assert problem.where == "sample: pip[0]"
    assert problem.hint.endswith("or leave linux/amd64 out of `platforms:`")


def test_a_conflict_on_all_platforms_is_told_once(site: Site) -> None:
    recipe = RECIPE.model_copy(update={"pip": ("nowhere",)})
    with pytest.raises(ConflictError) as caught:
        make_locks(select(recipe), site, None, None)
    (problem,) = caught.value.problems
    assert "linux/" not in str(problem)


def test_pins_move_no_further_than_every_platform_has(site: Site, archive: dict[str, str]) -> None:
    file = make_locks(select(RECIPE), site, None, None)
    recipe = RECIPE.model_copy(update={"pins": {"gcc": "14.2.0"}})
    archive.update(amd64="14.4.0-1", arm64="14.3.0-1")
    assert newest_for_all(select(recipe), LockFile(sections=file.sections), site, {}) == {"gcc": "14.3.0"}
