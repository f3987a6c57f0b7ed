"""The newest pins that fit together, from a folder of tiny wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.resolve.newest import Moves, newest_pins
from tests.support.wheelfolder import put, torch_world
from tests.unit import samples

GLIBC = "2.41"
OLD = {"cuda": "12.8", "cudnn": "9.10", "nccl": "2.26.2", "torch": "2.9.1"}


@pytest.fixture(autouse=True)
def no_archive(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for apt with a few packages; keep uv's cache here."""
    versions = {"python3": "3.13.7-1", "openmpi-bin": "5.0.10-1", "gcc-14": "14.3.0-1"}
    debs = tuple(samples.deb(name, version) for name, version in versions.items())
    monkeypatch.setattr("imagebuilder.resolve.debian.resolve_debs", lambda _request, _site: (debs, {}))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "wheels").mkdir()
    return Site(no_index=True, wheel_folders=(str(torch_world(tmp_path / "wheels")),))


def test_a_framework_moves_with_what_it_loads_and_not_past_its_cuda(site: Site) -> None:
    # 2.11.0 is there, but for CUDA 13; NCCL 2.28.9 is there, but no torch for CUDA 12 loads it.
    found = newest_pins(select(samples.recipe(pins=OLD)), GLIBC, site)
    assert found == {"cuda": "12.8", "cudnn": "9.10", "nccl": "2.27.5", "torch": "2.10.0"}


def test_a_pin_that_is_a_prefix_stays_one(site: Site) -> None:
    found = newest_pins(select(samples.recipe(pins={**OLD, "cudnn": "9", "torch": "2.9"})), GLIBC, site)
    assert (found["cudnn"], found["torch"]) == ("9", "2.10")


def test_what_somebody_forced_stays(site: Site) -> None:
    recipe = samples.recipe(pins={**OLD, "nccl": "2.28.9"}, override=("nccl",))
    found = newest_pins(select(recipe), GLIBC, site)
    assert (found["nccl"], found["torch"]) == ("2.28.9", "2.10.0")


def test_only_the_pins_that_were_asked_for_move(site: Site) -> None:
    recipe = samples.recipe(pins={**OLD, "openmpi": "5.0.7"})
    moves = Moves(only=frozenset({"openmpi"}))
    assert newest_pins(select(recipe), GLIBC, site, moves=moves) == {**OLD, "openmpi": "5.0.10"}
    assert [moves.stays(name, recipe) for name in ("torch", "openmpi")] == ["not asked for", ""]
    forced = samples.recipe(pins=OLD, override=("nccl",))
    assert Moves().stays("nccl", forced) == "forced by `override:`"


def test_patch_releases_stay_within_two_numbers(site: Site) -> None:
    pins = {**OLD, "torch": "2.9.0", "openmpi": "5.0.7"}
    found = newest_pins(select(samples.recipe(pins=pins)), GLIBC, site, moves=Moves(patch=True))
    assert found == {**pins, "torch": "2.9.1", "openmpi": "5.0.10"}


def test_debian_pins_take_what_the_suite_has_within_their_major(site: Site) -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0.7", "gcc": "14"})
    assert newest_pins(select(recipe), GLIBC, site) == {"openmpi": "5.0.10", "gcc": "14"}


def test_a_build_of_the_site_that_loads_nothing_is_stepped_over(site: Site, tmp_path: Path) -> None:
    put(tmp_path / "wheels", "torch", "2.10.0+cpu", tag="cp313-cp313-manylinux_2_28_x86_64")
    assert newest_pins(select(samples.recipe(pins=OLD)), GLIBC, site)["torch"] == "2.10.0"


def test_where_nothing_fits_both_parties_are_named(site: Site) -> None:
    recipe = samples.recipe(pins=OLD, pip=("nvidia-nccl-cu12==2.24.1",))
    with pytest.raises(ConflictError, match=r"nvidia-nccl-cu12"):
        newest_pins(select(recipe), GLIBC, site)
