"""Requirement files: each kind gives the same demands; bad ones are refused with a whole, fixed text."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuilder.errors import ConflictError, ImagebuilderError, InputError
from imagebuilder.recipe import Places, Recipe, requirements
from imagebuilder.recipe.requirements import FileDemands
from imagebuilder.resolve import agreement
from imagebuilder.workflow import read_recipe

CASES = Path(__file__).parents[1] / "cases" / "requirements"
BAD = sorted(CASES.iterdir())
CONFLICTS = {"another-python", "another-version-than-the-pin", "compiled-and-a-wheel"}
ONE, TWO = "1" * 64, "2" * 64


def copied(case: Path, folder: Path) -> Path:
    """Copy a case without the ending that keeps linters from reading its files; the recipe's path."""
    for path in case.iterdir():
        shutil.copy(path, folder / path.name.removesuffix(".bad"))
    return folder / "recipe.yaml"


def refusal(case: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ImagebuilderError:
    copied(case, folder)
    monkeypatch.chdir(folder)
    with pytest.raises(ImagebuilderError) as caught:
        read_recipe(Path("recipe.yaml"))
    return caught.value


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.name)
def test_a_bad_file_is_refused_with_this_text(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, update_golden: bool
) -> None:
    error = refusal(case, tmp_path, monkeypatch)
    text = f"{error}\n"
    if update_golden:
        (case / "expected").write_text(text, encoding="utf-8")
    assert text == (case / "expected").read_text(encoding="utf-8")
    assert error.exit_code == (4 if case.name in CONFLICTS else 3)
    for problem in error.problems:
        assert problem.hint
        assert re.match(r"[a-z0-9.-]+(:\d+)?(: [a-z0-9\[\].]+)?$", problem.where), problem.where
    assert "word" not in text  # a URL's password
    assert all(line.isprintable() for line in text.splitlines())


def read(
    folder: Path, *entries: str | dict[str, object], architecture: str = "amd64", python: str = "3.13"
) -> tuple[FileDemands, ...]:
    recipe = Recipe.model_validate(
        {"name": "sample", "base": "debian:trixie", "python": python, "requirements": entries}
    )
    variables = agreement.environment(recipe.python_minor, architecture)
    return requirements.read(recipe, folder, Places(recipe="sample"), variables)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def test_requirements_txt_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        base__txt="\ufeffPyYAML>=6 # a comment\n\n   # another\n",
        limits__txt="idna<4\n",
        requirements__txt="-r base.txt\n--constraint=limits.txt\n"
        'colorama; sys_platform == "win32"\n'
        "torchmetrics [Image, audio] >=1.0, <2 ; \\\n  python_version >= '3.12'\n"
        f"tqdm==4.67.1 \\\n    --hash=sha256:{TWO} \\\n    --hash sha256:{ONE}\n"
        "    # via train\n",
    )
    (found,) = read(tmp_path, "requirements.txt")
    assert found.asked == ("pyyaml>=6", "torchmetrics[audio,image]<2,>=1.0", "tqdm==4.67.1")
    places = {item.requirement: item.place.removeprefix(f"{tmp_path}/") for item in found.demands}
    assert places == {
        "pyyaml>=6": "base.txt:1",
        "idna<4": "limits.txt:1",
        "torchmetrics[audio,image]<2,>=1.0": "requirements.txt:4",
        "tqdm==4.67.1": "requirements.txt:6",
    }
    assert [item.requirement for item in found.demands if item.constraint] == ["idna<4"]
    assert [item.hashes for item in found.demands if item.hashes] == [(ONE, TWO)]


PROJECT = """
[project]
name = "Train"
requires-python = ">=3.11"
dependencies = ["numpy>=2", "tqdm; platform_machine == 'aarch64'"]

[project.optional-dependencies]
data = ["datasets"]
All_Of = ["train[data]", "wandb==0.20"]

[dependency-groups]
lint = ["ruff"]
dev = ["pytest", {include-group = "lint"}]

[tool.uv.sources]
wandb = {index = "ours"}
"""


def test_a_pyproject_is_read_with_the_extras_and_groups_that_are_named(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=PROJECT)
    (plain,) = read(tmp_path, "pyproject.toml")
    assert plain.asked == ("numpy>=2",)
    assert [str(item.place) for item in plain.demands] == [f"{tmp_path}/pyproject.toml:5"]
    (more,) = read(tmp_path, {"file": "pyproject.toml", "extras": ("all-of",), "groups": ("dev",)})
    assert more.asked == ("datasets", "numpy>=2", "pytest", "ruff", "wandb==0.20")
    (arm,) = read(tmp_path, "pyproject.toml", architecture="arm64")
    assert arm.asked == ("numpy>=2", "tqdm")


def test_groups_that_include_each_other_many_times_take_no_time(tmp_path: Path) -> None:
    groups = [f'g{n} = [{{include-group = "g{n + 1}"}}, {{include-group = "g{n + 1}"}}]' for n in range(40)]
    text = "[dependency-groups]\n" + "\n".join([*groups, 'g40 = ["tqdm"]\n'])
    write(tmp_path, pyproject__toml=text)
    (found,) = read(tmp_path, {"file": "pyproject.toml", "groups": ("g0",)})
    assert found.asked == ("tqdm",)


INDEX = '{ registry = "https://index.example/simple" }'


def uv_package(name: str, version: str, more: str = "", source: str = INDEX) -> str:
    wheel = f'{{ url = "https://index.example/{name}.whl", hash = "sha256:{ONE}" }}'
    head = f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {source}\n'
    return f"{head}wheels = [{wheel}]\n{more}\n"


TRAIN = """[[package]]
name = "train"
version = "0.1"
source = { editable = "." }
dependencies = [
    { name = "helper" },
    { name = "numpy", version = "1.26.4", marker = "python_full_version < '3.12'" },
    { name = "numpy", version = "2.3.0", marker = "python_full_version >= '3.12'" },
]
[package.optional-dependencies]
accel = [{ name = "jax", extra = ["cuda"] }]
[package.dev-dependencies]
dev = [{ name = "pytest" }]
"""
UV_LOCK = "\n".join(
    [
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n',
        uv_package("helper", "0.1", 'dependencies = [{ name = "tqdm" }]', source='{ editable = "helper" }'),
        uv_package("jax", "0.7", '[package.optional-dependencies]\ncuda = [{ name = "plugin" }]'),
        uv_package("numpy", "1.26.4"),
        uv_package("numpy", "2.3.0"),
        uv_package("plugin", "0.7"),
        uv_package("pytest", "8.0"),
        uv_package("tqdm", "4.67.1"),
        uv_package("unused", "1.0"),
        TRAIN,
    ]
)


def test_a_uv_lock_gives_what_uv_sync_would_install(tmp_path: Path) -> None:
    write(tmp_path, uv__lock=UV_LOCK)
    (plain,) = read(tmp_path, "uv.lock")
    assert plain.asked == ("numpy==2.3.0", "tqdm==4.67.1")
    (older,) = read(tmp_path, "uv.lock", python="3.11")
    assert older.asked == ("numpy==1.26.4", "tqdm==4.67.1")
    (more,) = read(tmp_path, {"file": "uv.lock", "extras": ("accel",), "groups": ("dev",)})
    assert more.asked == ("jax==0.7", "numpy==2.3.0", "plugin==0.7", "pytest==8.0", "tqdm==4.67.1")
    assert {item.hashes for item in more.demands} == {(ONE,)}


PYLOCK = f"""
lock-version = "1.0"
created-by = "hand"
requires-python = ">=3.11"
extras = ["viz"]
dependency-groups = ["dev"]
environments = ["sys_platform == 'linux'"]

[[packages]]
name = "tqdm"
version = "4.67.1"
wheels = [{{ path = "tqdm-4.67.1-py3-none-any.whl", hashes = {{ md5 = "0", sha256 = "{ONE}" }} }}]
sdist = {{ url = "https://index.example/tqdm-4.67.1.tar.gz", hashes = {{ sha256 = "{TWO}" }} }}

[[packages]]
name = "pywin32"
version = "310"
marker = "sys_platform == 'win32'"
wheels = [{{ path = "pywin32-310-py3-none-any.whl", hashes = {{ sha256 = "{ONE}" }} }}]

[[packages]]
name = "tabulate"
version = "0.10.0"
marker = "'viz' in extras"
wheels = [{{ path = "tabulate-0.10.0-py3-none-any.whl", hashes = {{ sha256 = "{ONE}" }} }}]

[[packages]]
name = "pytest"
version = "8.0"
marker = "'dev' in dependency_groups"
wheels = [{{ path = "pytest-8.0-py3-none-any.whl", hashes = {{ sha256 = "{ONE}" }} }}]
"""


def test_a_pylock_gives_every_package_whose_marker_holds(tmp_path: Path) -> None:
    write(tmp_path, pylock__toml=PYLOCK)
    (plain,) = read(tmp_path, "pylock.toml")
    assert [(item.requirement, item.hashes) for item in plain.demands] == [("tqdm==4.67.1", (ONE, TWO))]
    (more,) = read(tmp_path, {"file": "pylock.toml", "extras": ("viz",), "groups": ("dev",)})
    assert more.asked == ("pytest==8.0", "tabulate==0.10.0", "tqdm==4.67.1")


def test_what_a_file_limits_is_of_its_meaning(tmp_path: Path) -> None:
    def limits(text: str) -> tuple[object, ...]:
        write(tmp_path, requirements__txt=text)
        (found,) = read(tmp_path, "requirements.txt")
        return found.asked, found.limits

    plain = limits(f"a==1 --hash=sha256:{ONE}\nb\n")
    assert plain == limits(f"# moved\nb\nA == 1 \\\n  --hash=sha256:{ONE}\n")
    assert plain != limits(f"a==1 --hash=sha256:{TWO}\nb\n")
    assert plain != limits("a==1\nb\n")
    assert limits("a==1\nb\n")[1] == ""


def test_a_python_with_all_its_numbers_is_compared_exactly(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml='[project]\nname = "a"\nrequires-python = ">=3.13.2"\n')
    read(tmp_path, "pyproject.toml")
    read(tmp_path, "pyproject.toml", python="3.13.5")
    with pytest.raises(ConflictError) as caught:
        read(tmp_path, "pyproject.toml", python="3.13.1")
    place = f"{tmp_path}/pyproject.toml:3"
    assert str(caught.value) == (
        f'sample: python: is "3.13.1", and {place} asks for python>=3.13.2\n  -> change one of the two'
    )


# What a hostile recipe could lead to


def refused(folder: Path, entry: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, entry)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_symlink_is_not_followed_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("word", encoding="utf-8")
    (tmp_path / "requirements.txt").symlink_to("secret")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("-r ../requirements.txt\n", encoding="utf-8")
    (tmp_path / "linked").symlink_to("real")
    hint = "  -> give a path without symlinks"
    message = "requirements.txt is behind a symlink: requirements.txt"
    assert refused(tmp_path, "requirements.txt") == f"sample: requirements[0]: {message}\n{hint}"
    assert refused(tmp_path, "linked/a.txt") == (
        f"sample: requirements[0]: linked/a.txt is behind a symlink: linked\n{hint}"
    )
    assert refused(tmp_path, "real/a.txt") == f"real/a.txt:1: {message}\n{hint}"


def test_a_recipe_behind_a_symlink_finds_the_files_beside_the_folder_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "project" / "recipes").mkdir(parents=True)
    (tmp_path / "project" / "a.txt").write_text("tqdm\n", encoding="utf-8")
    (tmp_path / "recipes").symlink_to("project/recipes")
    (found,) = read(tmp_path / "recipes", "../a.txt")
    assert found.asked == ("tqdm",)


def test_what_is_not_a_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    shown = "sample: requirements[0]: {} is not a plain file\n  -> name a file"
    assert refused(tmp_path, "pipe.txt") == shown.format("pipe.txt")
    assert refused(tmp_path, "gone.txt") == (
        "sample: requirements[0]: gone.txt cannot be read: No such file or directory\n"
        "  -> paths are relative to the folder of the file that names them"
    )
    assert "folder.txt" in refused(tmp_path, "folder.txt")


HOSTILE: Mapping[str, tuple[str, str]] = {
    "large": ("requirements.txt", "#" * 8_000_001),
    "deep": ("pyproject.toml", "a = " + "[" * 100_000),
    "dotted": ("uv.lock", ".".join("a" * 40_000) + " = 1\n"),
    "digits": ("pylock.toml", "a = " + "1" * 5_000),
    "blanks": ("requirements.txt", " " * 4_000_000 + "x y\n" + " " * 3_000_000 + "!"),
    "many": ("requirements.txt", "a;os_name=='x'\n" * 400_000),
    "parentheses": ("requirements.txt", "a; " + "(" * 900 + "os_name=='x'" + ")" * 900),
    "hashes": ("requirements.txt", "a==1 " + f"--hash=sha256:{ONE} " * 90_000 + "--nonsense"),
    "same-name": (
        "uv.lock",
        'version = 1\n[[package]]\nname = "a"\nsource = { virtual = "." }\ndependencies = ['
        + '{name="b"},' * 100_000
        + "]\n"
        + '[[package]]\nname = "b"\nsource = {registry = "x"}\n' * 5_000,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_soon(name: str, tmp_path: Path) -> None:
    file, text = HOSTILE[name]
    (tmp_path / file).write_text(text, encoding="utf-8")
    started = time.monotonic()
    said = refused(tmp_path, file)
    assert time.monotonic() - started < 20
    assert len(said) < 20_000


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.name)
def test_every_problem_is_told_where_it_stands_too_from_another_folder(case: Path, tmp_path: Path) -> None:
    with pytest.raises(ImagebuilderError) as caught:
        read_recipe(copied(case, tmp_path))
    assert all(problem.where.startswith(str(tmp_path)) for problem in caught.value.problems)
