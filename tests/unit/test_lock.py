import json
from pathlib import Path

import pytest

from imagebuilder import lock as locks
from imagebuilder.errors import InputError, LockError
from tests.unit import samples


def test_a_lock_survives_being_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "sample.lock"
    locks.write(samples.lock(), path)
    assert locks.read(path) == samples.lock()
    assert locks.read(path).checksum == samples.lock().checksum


def test_a_copy_that_says_something_else_has_a_checksum_of_its_own() -> None:
    lock = samples.lock()
    before = lock.checksum
    other = lock.model_copy(update={"pins": {**lock.pins, "cuda": "12.9.0"}})
    assert other.checksum != before
    assert other.model_copy(update={"pins": lock.pins}).checksum == lock.checksum == before


def test_a_package_is_one_line_and_the_file_ends_with_a_newline() -> None:
    text = locks.dumps(samples.lock())
    assert len([line for line in text.splitlines() if '"file": "torch-2.10.0' in line]) == 1
    assert text.endswith("}\n")
    assert json.loads(text)["pins"]["cuda"] == "12.8.90"


def test_nothing_in_a_lock_says_where_bytes_come_from() -> None:
    assert "://" not in locks.dumps(samples.lock())


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"there is no lock\n  -> run: imagebuilder lock .*sample\.yaml"):
        locks.read(tmp_path / "sample.lock")


def test_a_stale_lock_says_what_to_run() -> None:
    with pytest.raises(LockError, match=r"out of step.*\n  -> run: imagebuilder lock recipes/sample\.yaml"):
        locks.require_in_step(samples.lock(), "1" * 64, Path("recipes/sample.yaml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheels": [{"name": "x"}]}, "wheels.0.file"),
        ({"inputs": "zz"}, "inputs"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_damaged_lock_names_the_key(change: dict[str, object], message: str) -> None:
    data = {**json.loads(locks.dumps(samples.lock())), **change}
    with pytest.raises(InputError) as caught:
        locks.loads(json.dumps(data), "sample.lock")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../x.whl", "/etc/passwd", "a/b.whl", "", ".hidden", "x\n.whl", "x\x00.whl"]
)
def test_a_file_name_in_a_lock_is_never_a_path(name: str) -> None:
    data = json.loads(locks.dumps(samples.lock()))
    data["wheels"][0]["file"] = name
    with pytest.raises(InputError, match=r"wheels\.0\.file"):
        locks.loads(json.dumps(data), "sample.lock")


@pytest.mark.parametrize("path", ["/pool/x.deb", "pool/../../x.deb", "pool//x.deb", "pool/x.deb?y", ""])
def test_a_pool_path_stays_below_the_archive(path: str) -> None:
    data = json.loads(locks.dumps(samples.lock()))
    data["debs"][0]["path"] = path
    with pytest.raises(InputError, match=r"debs\.0\.path"):
        locks.loads(json.dumps(data), "sample.lock")


def test_a_lock_from_the_future_asks_for_an_upgrade() -> None:
    data = {**json.loads(locks.dumps(samples.lock())), "format": 99}
    with pytest.raises(LockError, match="newer imagebuilder"):
        locks.loads(json.dumps(data), "sample.lock")


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        locks.loads(text, "sample.lock")


def test_a_folder_has_no_lock_but_a_name_for_one() -> None:
    assert locks.path_for(Path()) == Path(".lock")
    assert locks.path_for(Path("recipes/a.b.yaml")) == Path("recipes/a.b.lock")


def test_what_is_no_mapping_is_said_without_a_key() -> None:
    with pytest.raises(InputError) as caught:
        locks.loads("[]", "x.lock")
    assert caught.value.problems[0].where == "x.lock"
    assert caught.value.problems[0].hint == "run: imagebuilder lock x.yaml"
