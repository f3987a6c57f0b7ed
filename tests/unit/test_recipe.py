"""Recipes: good ones mean what they say; bad ones, kept as files, are refused with a whole, fixed text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagebuilder import catalog, recipe
from imagebuilder.errors import InputError

CASES = Path(__file__).parents[1] / "cases" / "recipes"
BAD = sorted(CASES.glob("*.yaml"))
SHIPPED = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError) as caught:
        recipe.load(Path(path.name), catalog.names())
    return f"{caught.value}\n"


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.stem)
def test_a_bad_recipe_is_refused_with_this_text(
    case: Path, monkeypatch: pytest.MonkeyPatch, *, update_golden: bool
) -> None:
    text = refusal(case, monkeypatch)
    expected = case.with_suffix(".txt")
    if update_golden:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.stem)
def test_every_refusal_says_what_and_where_and_what_to_do(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = refusal(case, monkeypatch).splitlines()
    for head, hint in zip(lines[::2], lines[1::2], strict=True):
        assert re.match(rf"{case.stem}\.yaml(:\d+)?: \S", head), head
        assert re.match(r"  -> \S", hint), hint
    assert all(line.isprintable() for line in lines)


def test_there_is_a_case_for_every_text_and_a_text_for_every_case() -> None:
    assert {path.stem for path in CASES.glob("*.txt")} == {path.stem for path in BAD}


def test_a_file_that_is_not_there_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: cannot be read: No such file"):
        recipe.load(tmp_path / "gone.yaml", frozenset())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads_and_is_named_like_its_file(path: Path) -> None:
    loaded = recipe.load(path, catalog.names())
    assert loaded.name == path.stem
    assert catalog.select(loaded).parts


def written(folder: Path, text: str) -> recipe.Recipe:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return recipe.load(path, catalog.names())


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    loaded = written(tmp_path, 'name: small\nbase: debian:trixie\npython: "3.13.5"\n')
    assert (loaded.distribution, loaded.suite, loaded.python_minor) == ("debian", "trixie", "3.13")
    assert (loaded.ssh.port, loaded.ssh.user) == (22, "root")
    assert (loaded.pins, loaded.override, loaded.apt, loaded.pip, loaded.env) == ({}, (), (), (), {})


def test_the_checksum_is_of_the_meaning_not_of_the_text(tmp_path: Path) -> None:
    plain = written(tmp_path, 'name: small\nbase: debian:trixie\npython: "3.13"\npins: {gcc: "14"}\n')
    other = written(
        tmp_path, "# a comment\npins:\n  gcc: '14'\nbase: debian:trixie\npython: '3.13'\nname: small\n"
    )
    changed = written(tmp_path, 'name: small\nbase: debian:trixie\npython: "3.13"\npins: {gcc: "13"}\n')
    assert plain.checksum() == other.checksum()
    assert plain.checksum() != changed.checksum()


def test_what_a_proof_is_changes_no_lock(tmp_path: Path) -> None:
    text = 'name: small\nbase: debian:trixie\npython: "3.13"\n'
    plain, again = written(tmp_path, text), written(tmp_path, f"{text}proof: {{reuse: nothing}}\n")
    assert (plain.proof.reuse, again.proof.reuse) == ("code", "nothing")
    assert plain.checksum() == again.checksum()


@pytest.mark.parametrize(
    "text",
    [
        'pins:\n  nccl: "2.27.5"  # nccl: "2.27.5" is what torch wants\n  cuda: "12.8"\n',
        "pins: {cuda: '12.8', 'nccl': '2.27.5', gcc: \"14\"}\n",
    ],
)
def test_other_pins_are_written_where_the_old_ones_stand(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f'name: a\nbase: debian:trixie\npython: "3.13"\n{text}')
    changed = recipe.with_pins(path, {"nccl": ("2.27.5", "2.28.9")})
    before, after = path.read_text(), changed
    assert after.replace("2.28.9", "2.27.5", 1) == before
    path.write_text(after)
    assert recipe.load(path, catalog.names()).pins["nccl"] == "2.28.9"


def test_a_pin_on_two_lines_is_left_to_its_author(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text('name: a\nbase: debian:trixie\npython: "3.13"\npins:\n  nccl:\n    "2.27.5"\n')
    with pytest.raises(InputError, match="nccl"):
        recipe.with_pins(path, {"nccl": ("2.27.5", "2.28.9")})


def test_a_variable_of_a_job_is_allowed_with_a_reason_that_the_image_s_labels_carry(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(
        "name: demo\nbase: debian:trixie\npython: '3.13'\npins: {torch: '2.10.0'}\nenv: {UCX_TLS: rc}\n"
        "allow_env: [{name: UCX_TLS, reason: all of our hosts have this fabric}]\n",
        encoding="utf-8",
    )
    (entry,) = recipe.load(path, catalog.names()).allow_env
    assert (entry.name, entry.reason) == ("UCX_TLS", "all of our hosts have this fabric")


@pytest.mark.parametrize("change", ["{name: 'NCCL_ X', reason: long enough}", "{name: UCX_TLS, reason: no}"])
def test_a_permission_needs_a_name_and_a_reason(change: str, tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(
        f"name: demo\nbase: debian:trixie\npython: '3.13'\npins: {{torch: '2.10.0'}}\n"
        f"allow_env: [{change}]\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=r"demo\.yaml:5: allow_env\[0\]\."):
        recipe.load(path, catalog.names())
