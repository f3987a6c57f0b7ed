"""Pins whose packages are in an archive of their own."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from imagebuilder.catalog import select
from imagebuilder.debian import versions
from imagebuilder.resolve import archivepins
from imagebuilder.resolve.request import Request, request
from tests.unit import samples

INDEX = {
    "libnccl2": ("2.26.2-1+cuda12.8", "2.27.5-1+cuda12.9", "2.27.5-1+cuda12.8", "2.27.3-1+cuda12.8"),
    "cuda-cudart-12-8": ("12.8.57-1", "12.8.90-1"),
}


def asked(nccl: str = "2.27") -> Request:
    base = {"image": "nvidia/cuda:12.8.1-base-debian13"}
    return request(select(samples.recipe(base=base, pins={"cuda": "12.8", "nccl": nccl})))


def test_the_newest_that_fits_is_chosen_and_what_is_there_stays() -> None:
    assert archivepins.choose(asked(), INDEX, {}) == {
        "libnccl2": "2.27.5-1+cuda12.8",
        "cuda-cudart-12-8": "12.8.90-1",
    }
    there = {"libnccl2": "2.27.3-1+cuda12.8", "cuda-cudart-12-8": "12.8.57-1"}
    assert archivepins.choose(asked(), INDEX, there) == there
    other = {"libnccl2": "2.25.1-1+cuda12.8"}
    assert archivepins.choose(asked(), INDEX, other)["libnccl2"] == "2.27.5-1+cuda12.8"


def test_what_nothing_fulfils_is_told_with_values_that_work() -> None:
    (problem,) = archivepins.problems(asked("2.28"), INDEX, {}, {"nvidia-cuda"})
    assert "whose libnccl2 built for cuda12.8 is 2.26.2 or 2.27.3 or 2.27.5" in problem.message
    assert problem.hint.startswith('set nccl: "2.27.5"')
    (gone,) = archivepins.problems(
        asked(), {"cuda-cudart-12-8": INDEX["cuda-cudart-12-8"]}, {}, {"nvidia-cuda"}
    )
    assert "which has no libnccl2" in gone.message
    unknown = archivepins.problems(asked(), {}, {}, set())
    assert all("which the base is not set up for" in problem.message for problem in unknown)
    assert not archivepins.problems(asked(), INDEX, {}, {"nvidia-cuda"})


def test_a_package_of_what_a_wheel_brings_gets_that_wheel_s_version() -> None:
    base = {"image": "nvidia/cuda:12.8.1-base-debian13"}
    pins = {"cuda": "12.8", "nccl": "2.27", "torch": "2.10.0"}
    wanted = request(select(samples.recipe(base=base, pins=pins, providers={"nccl": "apt"})))
    exact = archivepins.refined(wanted, {"nvidia-nccl-cu12": "2.27.3"})
    assert archivepins.choose(exact, INDEX, {}) == {"libnccl2": "2.27.3-1+cuda12.8"}
    assert dataclasses.replace(exact, deb_pins=wanted.deb_pins) == wanted


def test_a_lock_s_packages_still_fulfil_the_pins_or_not() -> None:
    fitting = [
        samples.installed("libnccl2", "2.27.3-1+cuda12.8"),
        samples.installed("cuda-cudart-12-8", "12.8.57-1"),
    ]
    assert archivepins.are_met(asked(), fitting)
    assert not archivepins.are_met(asked("2.26"), fitting)
    assert not archivepins.are_met(asked(), fitting[:1])


# In rising order; checked with `dpkg --compare-versions`.
RISING = (
    *("1.0~~", "1.0~rc1-1", "1.0", "1.0-1", "1.0-1+b1", "1.0+dfsg-1", "1.0.1-1", "1.2-1", "1.10-1"),
    *("2.26.2-1+cuda12.8", "2.26.2-1+cuda12.9", "2.26.2-2", "2.26.5-1", "1:0.1-1"),
)


@pytest.mark.parametrize(("low", "high"), tuple(itertools.pairwise(RISING)))
def test_versions_are_ordered_as_dpkg_does(low: str, high: str) -> None:
    assert versions.compare(low, high) < 0 < versions.compare(high, low)
    assert versions.compare(low, low) == 0
    assert versions.newest([low, high]) == high
