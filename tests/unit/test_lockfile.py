"""Locks of several platforms in one file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.errors import InputError, LockError
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.file import LockFile
from tests.unit import samples

AMD = samples.lock()
ARM = samples.lock(
    architecture="arm64",
    inputs="1" * 64,
    wheels=(samples.wheel("numpy", "2.0"),),
    debs=(samples.deb("python3", "3.13.5-1", "arm64"),),
)
BOTH = LockFile(sections=(AMD, ARM))


def test_a_single_platform_is_a_section_as_one_of_several_is() -> None:
    single, both = (json.loads(lockfile.dumps(file)) for file in (LockFile(sections=(AMD,)), BOTH))
    assert single == {**both, "platforms": {"linux/amd64": both["platforms"]["linux/amd64"]}}
    assert list(single) == ["format", "recipe", "platforms"]
    assert single["format"] == 1
    assert LockFile(sections=(AMD,)).checksum == AMD.checksum


def test_a_checksum_is_that_of_the_lock_without_its_layers_and_stays() -> None:
    """It is in tags and labels: another layout of the file must not change it."""
    assert AMD.checksum == "64b53c256262fba8ddcf545e60700b01f01277d1665abc8aa51dd7f482fed2ee"


def test_several_platforms_come_back_as_they_were(tmp_path: Path) -> None:
    lockfile.write(BOTH, tmp_path / "x.lock")
    found = lockfile.read(tmp_path / "x.lock")
    assert found == BOTH
    assert found.platforms == ("linux/amd64", "linux/arm64")
    assert found.section("linux/arm64") == ARM
    assert found.section("linux/riscv64") is None


def test_a_section_keeps_the_checksum_that_it_has_alone() -> None:
    again = lockfile.loads(lockfile.dumps(BOTH), "x.lock")
    assert [lock.checksum for lock in again.sections] == [AMD.checksum, ARM.checksum]
    assert again.checksum not in {AMD.checksum, ARM.checksum}


def test_a_package_is_a_line_in_every_section() -> None:
    lines = [line for line in lockfile.dumps(BOTH).splitlines() if '"name": "numpy"' in line]
    assert len(lines) == 2
    assert all(line.startswith('    {"name"') for line in lines)


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(lockfile.dumps(BOTH)), **changes})


def sections(**changes: Any) -> str:
    found = json.loads(lockfile.dumps(BOTH))["platforms"]
    return changed(platforms={**found, **changes})


def section(**changes: Any) -> str:
    found = json.loads(lockfile.dumps(BOTH))["platforms"]["linux/arm64"]
    return sections(**{"linux/arm64": {**found, **changes}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(platforms={}), "x.lock: platforms: Dictionary should have at least 1 item"),
        (changed(platforms=[]), "x.lock: platforms: Input should be a valid dictionary"),
        (changed(more=1), "x.lock: more: Extra inputs are not permitted"),
        (changed(format="1"), "x.lock: format: Input should be 1"),
        (changed(format=0), "x.lock: format: Input should be 1"),
        (changed(recipe="-x"), "x.lock: recipe: String should match pattern"),
        (json.dumps({"format": 1, "platforms": {}}), "x.lock: recipe: Field required"),
        (sections(Linux={}), "platforms.Linux.[key]: String should match pattern"),
        (sections(**{"linux/amd64": []}), "platforms.linux/amd64: Input should be a valid dictionary"),
        (sections(**{"linux/amd64": {}}), "x.lock: platforms.linux/amd64: inputs: Field required"),
        (section(recipe="other"), "x.lock: platforms.linux/arm64: recipe: is not a key of a section"),
        (section(architecture="amd64"), "platforms.linux/arm64: architecture: is not a key of a section"),
        (section(format=1), "x.lock: platforms.linux/arm64: format: Extra inputs are not permitted"),
        (lockfile.dumps(BOTH).replace('"linux/arm64": {', '"linux/amd64": {'), "a key is given twice"),
    ],
)
def test_a_file_that_somebody_changed_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        lockfile.loads(text, "x.lock")
    assert caught.value.problems[0].hint == "run: imagebuilder lock x.yaml"


def test_a_section_for_another_platform_than_its_packages_is_refused() -> None:
    found = json.loads(lockfile.dumps(BOTH))["platforms"]
    with pytest.raises(LockError, match=r"python3 is for arm64, not amd64"):
        lockfile.loads(sections(**{"linux/amd64": found["linux/arm64"]}), "x.lock")
    with pytest.raises(LockError, match=r"linux/riscv64: architecture: `riscv64` is not one"):
        lockfile.loads(sections(**{"linux/riscv64": found["linux/arm64"]}), "x.lock")


def test_a_newer_format_is_told_apart_from_damage() -> None:
    with pytest.raises(LockError, match="newer imagebuilder"):
        lockfile.loads(changed(format=lockfile.FORMAT + 1), "x.lock")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"linux/amd64": "0" * 64}, "also has linux/arm64, which the recipe does not list"),
        ({"linux/amd64": "0" * 64, "linux/arm64": "2" * 64}, "out of step with its recipe"),
        (
            {"linux/amd64": "0" * 64, "linux/arm64": "1" * 64, "linux/riscv64": "3" * 64},
            "has nothing for linux/riscv64",
        ),
    ],
)
def test_locks_for_other_platforms_are_out_of_step(inputs: dict[str, str], message: str) -> None:
    with pytest.raises(LockError, match=message):
        lockfile.require_in_step(BOTH, inputs, Path("x.yaml"))


def test_locks_made_from_the_recipe_are_in_step() -> None:
    lockfile.require_in_step(BOTH, {"linux/arm64": "1" * 64, "linux/amd64": "0" * 64}, Path("x.yaml"))
