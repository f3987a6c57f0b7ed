"""Packages of one's own and a stranger's of the same name: which is taken, and what is said."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site, detect
from imagebuilder.lock.model import Wheel
from imagebuilder.resolve.python import locate_wheels, resolve_wheels
from imagebuilder.resolve.request import Request, request
from tests.support.wheelfolder import put, put_index
from tests.unit import samples

GLIBC = "2.41"


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without settings of pip's and uv's, and without a cache."""
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.fixture
def public(tmp_path: Path) -> str:
    """The index of everybody, with a stranger's newer `mine`."""
    return put_index(tmp_path / "public", ("mine", "9.9"), ("pip", "25.3"), ("user", "1.0"), ("mine", "9.8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "wheels"
    made.mkdir()
    put(made, "mine", "1.0")
    return made


def site(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return detect(path)


def asked(*pip: str) -> Request:
    return request(select(samples.recipe(pins={}, pip=pip)))


def wheels(found: tuple[Wheel, ...]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in found}


def test_an_extra_index_of_the_site_file_comes_before_the_public_one(tmp_path: Path, public: str) -> None:
    private = put_index(tmp_path / "private", ("mine", "1.0"))
    here = site(tmp_path, f"index: '{public}'\nextra_indexes: ['{private}']\n")
    found, _ = resolve_wheels(asked("mine"), GLIBC, here)
    assert wheels(found) == {"mine": "1.0", "pip": "25.3"}
    (place,) = locate_wheels(found, "3.13", GLIBC, here)[found[0].sha256]
    assert place.startswith(private)


def test_a_version_that_the_private_index_lacks_is_not_taken_from_the_public_one(
    tmp_path: Path, public: str
) -> None:
    private = put_index(tmp_path / "private", ("mine", "1.0"))
    text = f"index: '{public}'\nextra_indexes: ['{private}']\n"
    with pytest.raises(ConflictError) as caught:
        resolve_wheels(asked("mine>=2"), GLIBC, site(tmp_path, text))
    assert "index_strategy" in str(caught.value)
    trusting = site(tmp_path, f"{text}index_strategy: unsafe-best-match\n")
    assert wheels(resolve_wheels(asked("mine>=2"), GLIBC, trusting)[0])["mine"] == "9.9"


def test_a_wheel_of_ones_own_is_not_lost_to_a_newer_package_of_its_name(
    tmp_path: Path, public: str, folder: Path
) -> None:
    here = site(tmp_path, f"index: '{public}'\nwheel_folders: [wheels]\n")
    with pytest.raises(ConflictError) as caught:
        resolve_wheels(asked("mine"), GLIBC, here)
    (problem,) = caught.value.problems
    assert problem.message == (
        f"mine 9.9 would come from a package index, but the wheel folder {folder} has mine 1.0: "
        "these may be two different packages"
    )
    assert problem.where == "sample: pip"
    assert 'write "mine==1.0" under `pip:` for the one in the folder' in problem.hint


@pytest.mark.parametrize("version", ["1.0", "9.9"])
def test_the_recipe_says_which_of_two_is_meant(
    version: str, tmp_path: Path, public: str, folder: Path
) -> None:
    here = site(tmp_path, f"index: '{public}'\nwheel_folders: ['{folder}']\n")
    found, _ = resolve_wheels(asked(f"mine=={version}"), GLIBC, here)
    assert wheels(found)["mine"] == version


def test_of_one_version_in_both_the_folder_s_file_is_taken(tmp_path: Path, folder: Path) -> None:
    public = put_index(tmp_path / "public", ("mine", "1.0"), ("pip", "25.3"))
    put(tmp_path / "public" / "mine", "mine", "1.0", content=b"a stranger's")
    here = site(tmp_path, f"index: '{public}'\nwheel_folders: ['{folder}']\n")
    found, _ = resolve_wheels(asked("mine==1.0"), GLIBC, here)
    content = (folder / "mine-1.0-py3-none-any.whl").read_bytes()
    assert found[0].sha256 == hashlib.sha256(content).hexdigest()


def test_a_better_file_of_that_version_on_an_index_is_no_way_in(tmp_path: Path, folder: Path) -> None:
    public = put_index(tmp_path / "public", ("mine", "1.0"), ("pip", "25.3"))
    better = "mine-1.0-cp313-cp313-manylinux_2_17_x86_64.whl"
    put(
        tmp_path / "public" / "mine", "mine", "1.0", tag=better.removeprefix("mine-1.0-").removesuffix(".whl")
    )
    (tmp_path / "public" / "mine" / "index.html").write_text(f'<a href="{better}">{better}</a>')
    here = site(tmp_path, f"index: '{public}'\nwheel_folders: ['{folder}']\n")
    with pytest.raises(ConflictError, match="these may be two different packages"):
        resolve_wheels(asked("mine==1.0"), GLIBC, here)
