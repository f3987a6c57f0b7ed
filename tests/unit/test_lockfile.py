"""Locks of several platforms in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import lock as locks
from imagebuilder import lockfile
from imagebuilder.errors import InputError, LockError
from imagebuilder.lockfile import LockFile
from tests.unit import samples

AMD = samples.lock()
ARM = samples.lock(architecture="arm64", inputs="1" * 64, wheels=(samples.wheel("numpy", "2.0"),))
BOTH = LockFile(sections=(AMD, ARM))


def test_a_single_platform_is_written_as_its_lock_alone() -> None:
    single = LockFile(sections=(AMD,))
    assert lockfile.dumps(single) == locks.dumps(AMD)
    assert single.checksum == AMD.checksum
    assert lockfile.loads(locks.dumps(AMD), "x.lock") == single


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(platforms={}), "is not a lock of several platforms"),
        (changed(platforms=[]), "is not a lock of several platforms"),
        (changed(more=1), "is not a lock of several platforms"),
        (changed(recipe="other"), "its sections are of different recipes"),
        (sections(**{"linux/riscv64": json.loads(locks.dumps(ARM))}), "is not a lock of that platform"),
        (sections(**{"linux/amd64": json.loads(locks.dumps(ARM))}), "is not a lock of that platform"),
        (sections(**{"linux/amd64": []}), "Input should be an object"),
        (lockfile.dumps(BOTH).replace('"linux/arm64": {', '"linux/amd64": {'), "a key is given twice"),
        (
            sections(**{"linux/arm64": json.loads(locks.dumps(ARM.model_copy(update={"python": "3.12"})))}),
            "its sections are of different recipes",
        ),
    ],
)
def test_a_file_that_somebody_changed_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        lockfile.loads(text, "x.lock")
    assert caught.value.problems[0].hint == "run: imagebuilder lock x.yaml"


def test_a_newer_format_is_told_apart_from_damage() -> None:
    with pytest.raises(LockError, match="newer imagebuilder"):
        lockfile.loads(changed(format=locks.FORMAT + 1), "x.lock")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"linux/amd64": "0" * 64}, "also has linux/arm64, for which the recipe is not"),
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
