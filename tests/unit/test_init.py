"""`init` copies a shipped recipe that loads as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagebuilder import catalog, recipe
from imagebuilder.core import files
from imagebuilder.errors import InputError
from imagebuilder.recipe import init
from imagebuilder.workflow import schemas


def copied(folder: Path, name: str, *, force: bool = False) -> tuple[Path, ...]:
    return init.write(
        init.place(folder, name, force=force), init.shipped(name), schemas.text(schemas.recipe())
    )


SHIPPED = sorted(path.stem for path in files.resources("recipes").glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_copied_recipe_loads_and_finds_its_schema(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "new" / "folder"
    written = copied(folder, name)
    assert written == (folder / f"{name}.yaml", folder / "recipe.schema.json")
    assert recipe.load(written[0], catalog.names()).name == name
    first = written[0].read_text(encoding="utf-8").splitlines()[0]
    assert (folder / first.partition("$schema=")[2]) == written[1]
    assert json.loads(written[1].read_text(encoding="utf-8")) == schemas.recipe()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "cpu-mpi.yaml"
    mine.write_text("mine\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cpu-mpi\.yaml: already exists\n.*--force"):
        copied(tmp_path, "cpu-mpi")
    assert mine.read_text(encoding="utf-8") == "mine\n"
    assert not (tmp_path / "recipe.schema.json").exists()


def test_force_writes_over_it(tmp_path: Path) -> None:
    (tmp_path / "cpu-mpi.yaml").write_text("mine\n", encoding="utf-8")
    copied(tmp_path, "cpu-mpi", force=True)
    assert "name: cpu-mpi" in (tmp_path / "cpu-mpi.yaml").read_text(encoding="utf-8")


def test_a_second_recipe_goes_beside_the_first(tmp_path: Path) -> None:
    copied(tmp_path, "cpu-mpi")
    copied(tmp_path, "cuda12-torch")
    assert {path.name for path in tmp_path.iterdir()} == {
        "cpu-mpi.yaml",
        "cuda12-torch.yaml",
        "recipe.schema.json",
    }


@pytest.mark.parametrize("name", ["cuda12-torhc", "../pyproject", "", "x\x1b[31m"])
def test_an_unknown_recipe_is_refused_with_the_names_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"is not a shipped recipe\n.*(cuda12-torch|shipped:)") as caught:
        copied(tmp_path, name)
    assert "\x1b" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file.*: cannot be written: .*\n.*folder that you may write to"):
        copied(tmp_path / "file" / "sub", "cpu-mpi")
