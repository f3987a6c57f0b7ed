import pytest

from imagebuilder import catalog
from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.resolve.request import Pinned, request
from tests.unit import samples


@pytest.mark.parametrize(
    ("value", "requirement"),
    [
        ("9.10", "nvidia-cudnn-cu12==9.10.*"),
        ("2.27.5", "nvidia-cudnn-cu12==2.27.5.*"),
        ("2.13.0+cpu", "nvidia-cudnn-cu12==2.13.0+cpu"),
        ("2.0.0rc1", "nvidia-cudnn-cu12==2.0.0rc1"),
        ("1.0.post1", "nvidia-cudnn-cu12==1.0.post1"),
    ],
)
def test_a_pin_is_a_prefix_unless_it_names_one_build(value: str, requirement: str) -> None:
    assert Pinned(pin="cudnn", value=value, package="nvidia-cudnn-cu12").requirement == requirement


def test_cuda_thirteen_has_other_package_names() -> None:
    pins = {"cuda": "13.0", "cudnn": "9.19", "nccl": "2.28.9"}
    packages = [pinned.package for pinned in request(select(samples.recipe(pins=pins))).wheel_pins]
    assert packages == ["nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"]


def test_the_catalog_brings_packages_of_the_pinned_major() -> None:
    asked = request(select(samples.recipe(pins={"gcc": "14.2"}, apt=("nano",))))
    assert {"gcc-14", "g++-14", "nano", "openssh-server", "python3"} <= set(asked.packages)


def test_a_needed_pin_that_is_missing_is_named() -> None:
    with pytest.raises(ConflictError, match=r"`cudnn` needs `cuda`, which is not pinned\n  -> add `cuda:`"):
        request(select(samples.recipe(pins={"cudnn": "9.10"})))


def test_a_cuda_that_is_not_available_names_those_that_are() -> None:
    with pytest.raises(ConflictError, match=r'cuda "10\.2" is not available: the catalog has CUDA 11 and'):
        request(select(samples.recipe(pins={"cuda": "10.2"})))


def test_comments_and_order_do_not_change_the_checksum_but_a_pin_does() -> None:
    one = samples.recipe(pins={"cuda": "12.8", "nccl": "2.27.5"})
    same = samples.recipe(pins={"nccl": "2.27.5", "cuda": "12.8"})
    other = samples.recipe(pins={"cuda": "12.8", "nccl": "2.28.9"})
    assert request(select(one)).checksum() == request(select(same)).checksum()
    assert request(select(one)).checksum() != request(select(other)).checksum()


def test_every_component_of_the_catalog_can_be_named_without_reading_it() -> None:
    assert catalog.names() == frozenset(catalog.load())


@pytest.mark.parametrize(
    ("version", "pin", "fits"),
    [
        ("12.8.90", "12.8", True),
        ("12.80", "12.8", False),
        ("12.8", "12.8", True),
        ("2.13.0+cpu", "2.13.0", True),
    ],
)
def test_a_version_fits_a_pin_by_whole_numbers(version: str, pin: str, fits: bool) -> None:
    assert catalog.matches(version, pin) is fits
