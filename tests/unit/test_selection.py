"""The selection: the catalog is read once in a command, and each problem knows its line in the recipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imagebuilder import catalog, recipe
from imagebuilder.catalog import select
from imagebuilder.cli import app
from imagebuilder.errors import ConflictError
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.recipe import Places
from imagebuilder.resolve import locking
from imagebuilder.store import LayerRecord, Store
from imagebuilder.workflow import check_recipe, read_plan
from tests.unit import samples

NAME = "cpu-mpi"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for suffix in (".yaml", ".lock"):
        shutil.copy(samples.RECIPES / f"{NAME}{suffix}", tmp_path)
    return tmp_path / f"{NAME}.yaml"


def loads() -> int:
    """Count the calls of `catalog.load` so far; all but the first are answered from memory."""
    counted = catalog.load.cache_info()
    return counted.hits + counted.misses


@pytest.mark.parametrize("verb", ["check", "plan", "render", "lock"])
def test_a_command_asks_for_the_catalog_once(verb: str, path: Path) -> None:
    before = loads()
    result = CliRunner().invoke(app, [verb, str(path)])
    assert result.exit_code == 0, result.output
    assert loads() - before == 1


def test_a_first_lock_asks_for_the_catalog_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = lockfile.read(locks.path_for(path)).sections[0]
    monkeypatch.setattr(locking, "_resolve", lambda *_: ((known.debs, {}), known.wheels, known.overrides))
    locks.path_for(path).unlink()
    before = loads()
    result = CliRunner().invoke(app, ["lock", str(path)])
    assert result.exit_code == 0, result.output
    assert loads() - before == 1
    assert lockfile.read(locks.path_for(path)).sections[0].pins == known.pins


def test_a_build_with_nothing_to_make_asks_for_the_catalog_once(path: Path, tmp_path: Path) -> None:
    _, plan = read_plan(path)
    store = Store(tmp_path / "store")
    for layer in plan.layers:
        digest, size = store.put_bytes(layer.key.encode())
        record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")
        store.put_layer(layer.key, record)
    lockfile.write(lockfile.read(locks.path_for(path)).plain, locks.path_for(path))
    before = loads()
    result = CliRunner().invoke(app, ["build", str(path), "--store", str(store.root), "--tools", "host"])
    assert result.exit_code == 0, result.output
    assert "(0 made" in result.output
    assert loads() - before == 1


def test_other_pins_are_chosen_from_the_same_catalog() -> None:
    one = select(samples.recipe(pins={"cuda": "12.8", "cudnn": "9.10"}))
    other = one.with_pins({"cuda": "13.0", "cudnn": "9.10"})
    wheels = [dict.fromkeys(part.provider.wheel for part in made.parts) for made in (one, other)]
    assert wheels[0] != wheels[1]
    assert other.components is one.components
    assert other.recipe.name == one.recipe.name
    with pytest.raises(ConflictError, match="`cudnn` needs `cuda`"):
        one.with_pins({"cudnn": "9.10"})


def test_a_place_has_file_line_and_key_and_without_a_file_the_recipes_name(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    loaded, places = recipe.read(path, catalog.names())
    number = next(i for i, line in enumerate(lines, 1) if line.strip().startswith("openmpi:"))
    assert places.of("pins", "openmpi") == f"{path}:{number}: pins.openmpi"
    # A key that is not in the file has no line.
    assert places.of("hosts") == f"{NAME}: hosts"
    alone = Places(recipe=loaded.name)
    assert alone.of("pip", 0) == f"{NAME}: pip[0]"
    assert alone.of_package("nano") == f"{NAME}: apt: nano"


def test_a_package_is_found_under_apt_whatever_its_version(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = 'name: x\nbase: debian:trixie\npython: "3.13"\napt:\n  - nano\n  - tini=0.19.0-3\n'
    path.write_text(text, encoding="utf-8")
    _, places = recipe.read(path, catalog.names())
    assert places.of_package("tini") == f"{path}:6: apt[1]"
    assert places.of_package("vim") == f"{path}:4: apt"


def test_check_says_the_line_of_a_pin_that_lacks_another(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = 'name: x\nbase: debian:trixie\npython: "3.13"\npins:\n  cudnn: "9.10"\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConflictError) as caught:
        check_recipe(path)
    assert [problem.where for problem in caught.value.problems] == [f"{path}:5: pins.cudnn"]
