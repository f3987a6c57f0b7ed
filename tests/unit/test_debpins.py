"""Pins against an archive: which fit, and what is offered instead."""

from __future__ import annotations

import pytest

from imagebuilder.debian import versions
from imagebuilder.resolve import debpins
from imagebuilder.resolve.request import Pinned
from tests.unit import samples
from tests.unit.test_debian import request

INDEX = {
    "gcc-12": ("12.4.0-5",),
    "gcc-14": ("14.2.0-19",),
    "gcc-14-base": ("14.2.0-19",),
    "g++-14": ("14.2.0-19",),
    "openmpi-bin": ("5.0.7-1",),
    "python3": ("3.13.5-1",),
    "rdma-core": ("56.0-1", "56.1-1"),
    "mail-transport-agent": (),
}


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("5.0.7-1", "5.0.7"),
        ("1:10.0p1-7+deb13u4", "10.0"),
        ("3.2.1+dfsg-1", "3.2.1"),
        ("1.0~ds2-3", "1.0"),
        ("2.41-12+deb13u2", "2.41"),
        ("6.0.0~rc2-1", "6.0.0rc2"),
        ("20250419", "20250419"),
        ("2.0-1+really1.9-2", "1.9"),
        ("1.2-3-4", "1.2-3"),
    ],
)
def test_the_packaging_is_taken_from_a_version(debian: str, upstream: str) -> None:
    assert versions.upstream(debian) == upstream


def test_a_pin_whose_package_carries_the_major_offers_the_majors_there_are() -> None:
    asked = request(deb_pins=(Pinned(pin="gcc", value="15", package="gcc-15"),))
    (problem,) = debpins.unmet_pins(asked, INDEX, INDEX)
    assert problem.message == 'gcc "15" contradicts base debian trixie, which has no gcc-15'
    assert '`gcc: "12.4.0"` or `gcc: "14.2.0"`' in problem.hint
    assert problem.where == "sample: pins.gcc"


def test_what_a_missing_pin_brings_in_is_not_reported_once_more() -> None:
    asked = request(
        deb_pins=(Pinned(pin="gcc", value="15", package="gcc-15"),), packages=("g++-15", "gcc-15")
    )
    assert debpins.unknown_packages(asked, INDEX) == []


def test_a_prefix_of_the_version_is_fulfilled() -> None:
    asked = request(deb_pins=(Pinned(pin="gcc", value="14.2", package="gcc-14"),))
    assert debpins.unmet_pins(asked, INDEX, INDEX) == []


def test_python_is_compared_by_its_minor() -> None:
    (problem,) = debpins.unmet_pins(request(deb_pins=(), python="3.12"), INDEX, INDEX)
    assert problem.message == 'python "3.12" contradicts base debian trixie, whose python3 is 3.13.5'
    assert '`python: "3.13"`' in problem.hint


def test_a_mistyped_package_gets_near_names() -> None:
    (problem,) = debpins.unknown_packages(request(packages=("rdma-cor",)), INDEX)
    assert problem.where == "sample: apt: rdma-cor"
    assert problem.hint == "perhaps you meant `rdma-core`"


def test_a_version_that_is_not_there_lists_those_that_are() -> None:
    (problem,) = debpins.unknown_packages(request(packages=("rdma-core=55",)), INDEX)
    assert "it has 56.0-1, 56.1-1" in problem.hint


def test_a_name_that_is_only_provided_is_apt_s_to_judge() -> None:
    assert debpins.unknown_packages(request(packages=("mail-transport-agent",)), INDEX) == []


def test_the_packages_of_an_older_lock_are_held_against_newer_pins() -> None:
    debs = (samples.deb("openmpi-bin", "5.0.7-1"), samples.deb("python3", "3.13.5-1"))
    assert debpins.pin_problems(request(), debs) == ()
    changed = request(deb_pins=(Pinned(pin="openmpi", value="5.1", package="openmpi-bin"),))
    assert [problem.where for problem in debpins.pin_problems(changed, debs)] == ["sample: pins.openmpi"]


def test_apt_s_errors_are_kept_and_its_chatter_is_not() -> None:
    text = "Reading state...\nE: one\nN: note\nW: two\nE: one\n"
    assert debpins.condense(text) == "E: one\nW: two"
    assert debpins.condense("something else\n") == "something else"
