"""Facts of the catalog: which recipes they refuse, what they only say, and that each is complete."""

from __future__ import annotations

import itertools

import pytest

from imagebuilder import catalog
from imagebuilder.catalog import limits, select
from imagebuilder.errors import ConflictError
from tests.unit import samples

LIMITS = [(name, limit) for name, component in catalog.load().items() for limit in component.limits]
HOSTS = {"driver", "gpus", "python"}


def told(versions: dict[str, str] | None = None, **changes: object) -> list[str]:
    return [str(problem) for problem in limits.problems(select(samples.recipe(**changes)), versions or {})]


@pytest.mark.parametrize(
    ("cuda", "driver", "fits"),
    [
        ("12.8", "570.26", True),
        ("12.8", "570.25.9", False),
        ("12.8", "580.65.06", True),
        ("12.8.90", "565.57.01", False),
        ("13.0", "575.57.08", False),
        ("12", "525.60.13", True),
    ],
)
def test_a_driver_is_old_enough_or_not(cuda: str, driver: str, *, fits: bool) -> None:
    assert (told(pins={"cuda": cuda}, hosts={"driver": driver}) == []) is fits


def test_every_gpu_that_does_not_fit_is_told() -> None:
    found = told(pins={"cuda": "13.0"}, hosts={"gpus": ("6.1", "9.0", "7.0")})
    assert [line.split('"')[1] for line in found] == ["6.1", "7.0"]


def test_what_a_recipe_leaves_open_is_judged_by_the_lock() -> None:
    pins = {"cuda": "12", "torch": "2"}
    assert told(pins=pins, hosts={"driver": "550.54.14"}) == []
    assert told({"cuda": "12.8.90", "torch": "2.10.0"}, pins={"torch": "2"}, hosts={"driver": "550.54.14"})


def test_the_implied_compiler_is_judged_before_anything_is_looked_up() -> None:
    found = told(pins={"cuda": "13.0", "gcc": "16"}, devel=True)
    assert len(found) == 1
    assert 'pins.gcc: gcc "16" clashes with nvcc "13.0", which needs 15 or older' in found[0]
    assert 'set gcc: "15"' in found[0]


def test_the_suite_s_own_compiler_is_said_and_no_conflict() -> None:
    recipe = samples.recipe(pins={"cuda": "12.8", "gcc": "13"}, devel=True)
    versions = {"cuda": "12.8.90", "nvcc": "12.4.131", "gcc": "13.3.0"}
    assert limits.problems(select(recipe), versions) == []
    (note,) = limits.notes(select(recipe), versions)
    assert note.startswith("nvcc 12.4.131, cuda 12.8.90: nvcc is the suite's own")
    assert limits.notes(select(recipe), {**versions, "cuda": "12.4.127"}) == []


def test_a_gpu_that_the_libraries_know_and_the_suite_s_compiler_does_not() -> None:
    pins = {"cuda": "12.8", "gcc": "13"}
    versions = {"cuda": "12.8.90", "nvcc": "12.4.131", "gcc": "13.3.0"}
    assert told(versions, pins=pins, devel=True, hosts={"gpus": ("9.0",)}) == []
    (line,) = told(versions, pins=pins, devel=True, hosts={"gpus": ("10.0",)})
    assert 'nvcc "12.4.131"' in line
    assert "Unsupported gpu architecture" in line


def test_a_compiler_of_another_major_is_refused() -> None:
    recipe = samples.recipe(pins={"cuda": "12.8", "gcc": "11"}, devel=True)
    with pytest.raises(ConflictError, match=r'cuda "12.8" clashes with nvcc "11.8.89", which needs 11'):
        limits.require(select(recipe), {"nvcc": "11.8.89"})


@pytest.mark.parametrize(("name", "limit"), LIMITS, ids=lambda value: getattr(value, "version", value))
def test_a_limit_is_about_something_known_and_says_why(name: str, limit: catalog.Limit) -> None:
    assert limit.of in HOSTS | catalog.names() - {name}
    assert limit.least or limit.most
    assert limit.why


def test_no_two_limits_speak_of_the_same() -> None:
    for (one, left), (other, right) in itertools.combinations(LIMITS, 2):
        if one == other and left.of == right.of and left.strict == right.strict:
            assert not catalog.matches(left.version, right.version), f"{one} {left.version} of {left.of}"
            assert not catalog.matches(right.version, left.version), f"{one} {right.version} of {left.of}"
