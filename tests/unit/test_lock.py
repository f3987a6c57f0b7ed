import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from imagebuilder.errors import InputError, LockError
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from tests.unit import samples


def test_a_lock_survives_being_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "sample.lock"
    lockfile.write(LockFile(sections=(samples.lock(),)), path)
    assert lockfile.read(path).sections[0] == samples.lock()
    assert lockfile.read(path).sections[0].checksum == samples.lock().checksum


def test_a_copy_that_says_something_else_has_a_checksum_of_its_own() -> None:
    lock = samples.lock()
    before = lock.checksum
    other = lock.model_copy(update={"pins": {**lock.pins, "cuda": "12.9.0"}})
    assert other.checksum != before
    assert other.model_copy(update={"pins": lock.pins}).checksum == lock.checksum == before


def test_a_package_is_one_line_and_the_file_ends_with_a_newline() -> None:
    text = lockfile.dumps(LockFile(sections=(samples.lock(),)))
    assert len([line for line in text.splitlines() if '"file": "torch-2.10.0' in line]) == 1
    assert text.endswith("}\n")
    assert samples.section(json.loads(text))["pins"]["cuda"] == "12.8.90"


def test_nothing_in_a_lock_says_where_bytes_come_from() -> None:
    assert "://" not in lockfile.dumps(LockFile(sections=(samples.lock(),)))


def test_the_page_of_the_lock_names_every_field() -> None:
    page = (samples.ROOT / "docs" / "reference" / "lock.md").read_text()
    fields = {*locks.Lock.model_fields, "format", "platforms"} - {"architecture"}
    assert {name for name in fields if f"\n| `{name}` | " not in page} == set()
    assert f"version of this layout: {lockfile.FORMAT}." in page


@pytest.mark.parametrize(
    ("entry", "model"),
    [
        ("wheels[]", locks.Wheel),
        ("debs[]", locks.Deb),
        ("image", locks.BaseImage),
        ("image.layers[]", locks.BaseLayer),
        ("image.packages[]", locks.Installed),
        ("requirements[]", locks.RequirementSet),
        ("overrides[]", locks.Override),
        ("builds[]", locks.Build),
        ("builds[].sources[]", locks.Source),
        ("project", locks.ProjectBuild),
        ("layers[]", locks.KnownLayer),
    ],
)
def test_the_page_of_the_lock_names_every_field_of_an_entry(entry: str, model: type[BaseModel]) -> None:
    page = (samples.ROOT / "docs" / "reference" / "lock.md").read_text().partition("## Entries")[2]
    (row,) = re.findall(rf"^\| `{re.escape(entry)}` \| (.*) \|$", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(model.model_fields)


def test_the_image_s_date_is_the_newest_time_in_the_lock() -> None:
    dates = [f"2026-11-0{day}T00:00:00Z" for day in range(1, 5)]
    image = samples.base_image(created=dates[3])
    build = locks.Build(
        component="openmpi", version="5.0.7", archives={"sid": dates[2]}, packages=(), system=(), debs=(),
        wheels=(), sources=(),
    )  # fmt: skip
    lock = samples.lock(archives={"trixie": dates[1], "trixie-security": dates[0]})
    assert lock.created == dates[1]
    assert samples.lock(archives=lock.archives, builds=(build,)).created == dates[2]
    assert samples.lock(archives=lock.archives, image=image).created == dates[3]
    assert samples.lock(image=image).created == dates[3]
    assert samples.lock().created == "1970-01-01T00:00:00Z"


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"there is no lock\n  -> run: imagebuilder lock .*sample\.yaml"):
        lockfile.read(tmp_path / "sample.lock")


def test_a_stale_lock_says_what_to_run() -> None:
    with pytest.raises(LockError, match=r"out of step.*\n  -> run: imagebuilder lock recipes/sample\.yaml"):
        locks.require_in_step(samples.lock(), "1" * 64, Path("recipes/sample.yaml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheels": [{"name": "x"}]}, "wheels.0.file"),
        ({"inputs": "zz"}, "inputs"),
        ({"archives": {"trixie": "2026-11-21 00:53:03"}}, "archives.trixie"),
        ({"archives": {"trixie": "1970-01-01T00:00:00Z"}}, "archives.trixie"),
        ({"archives": {"trixie": "2026-02-30T00:00:00Z"}}, "archives.trixie"),
        ({"archives": {"a\nb": "2026-11-21T00:53:03Z"}}, "archives.a"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_damaged_lock_names_the_key(change: dict[str, object], message: str) -> None:
    data = samples.lock_document(samples.lock())
    samples.section(data).update(change)
    with pytest.raises(InputError) as caught:
        lockfile.loads(json.dumps(data), "sample.lock").sections[0]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../x.whl", "/etc/passwd", "a/b.whl", "", ".hidden", "x\n.whl", "x\x00.whl"]
)
def test_a_file_name_in_a_lock_is_never_a_path(name: str) -> None:
    data = samples.lock_document(samples.lock())
    samples.section(data)["wheels"][0]["file"] = name
    with pytest.raises(InputError, match=r"wheels\.0\.file"):
        lockfile.loads(json.dumps(data), "sample.lock")


@pytest.mark.parametrize("path", ["/pool/x.deb", "pool/../../x.deb", "pool//x.deb", "pool/x.deb?y", ""])
def test_a_pool_path_stays_below_the_archive(path: str) -> None:
    data = samples.lock_document(samples.lock())
    samples.section(data)["debs"][0]["path"] = path
    with pytest.raises(InputError, match=r"debs\.0\.path"):
        lockfile.loads(json.dumps(data), "sample.lock")


def test_a_lock_from_the_future_asks_for_an_upgrade() -> None:
    data = {**samples.lock_document(samples.lock()), "format": 99}
    with pytest.raises(LockError, match="newer imagebuilder"):
        lockfile.loads(json.dumps(data), "sample.lock")


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        lockfile.loads(text, "sample.lock")


def test_a_folder_has_no_lock_but_a_name_for_one() -> None:
    assert locks.path_for(Path()) == Path(".lock")
    assert locks.path_for(Path("recipes/a.b.yaml")) == Path("recipes/a.b.lock")


def test_what_is_no_mapping_is_said_without_a_key() -> None:
    with pytest.raises(InputError) as caught:
        lockfile.loads("[]", "x.lock").sections[0]
    assert caught.value.problems[0].where == "x.lock"
    assert caught.value.problems[0].hint == "run: imagebuilder lock x.yaml"
