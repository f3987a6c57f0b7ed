"""The strict YAML reader: where things stand, what is refused, and that nothing makes it fall over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict

from imagebuilder.core import yamlfile
from imagebuilder.errors import InputError


def _lower(value: str) -> str:
    if not value.islower():
        raise yamlfile.Invalid(f"`{value}` is not lower case", "write it small; like this")
    return value


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: int = 1
    on: bool = False


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, AfterValidator(_lower)] = "x"
    count: int = 1
    part: Part = Part()
    parts: tuple[Part, ...] = ()


def problems(text: str, renames: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        yamlfile.validate(yamlfile.parse(text.encode(), "f"), Model, renames)
    return [str(problem) for problem in caught.value.problems]


def test_plain_values_become_plain_data() -> None:
    text = b"a: word\nb: 12\nc: [yes, No, true, off]\nd: {e: null, f: }\ng: '1.10'\nh: 0\n"
    assert yamlfile.parse(text, "f").data == {
        "a": "word",
        "b": 12,
        "c": (True, False, True, False),
        "d": {"e": None, "f": None},
        "g": "1.10",
        "h": 0,
    }


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# only a comment\n", "\ufeff".encode()])
def test_a_file_without_content_is_an_empty_mapping(text: bytes) -> None:
    assert yamlfile.parse(text, "f").data == {}


def test_every_place_has_its_line() -> None:
    document = yamlfile.parse(b"# comment\na:\n  - x\n  - y: 1\nb: {c: 2}\n", "f.yaml")
    assert document.where(("a", 1, "y")) == "f.yaml:4: a[1].y"
    assert document.where(("b", "c")) == "f.yaml:5: b.c"
    assert document.where(()) == "f.yaml:2"


def test_a_place_that_is_not_in_the_file_gets_the_line_of_what_is_above_it() -> None:
    document = yamlfile.parse(b"a:\n  b: 1\n", "f")
    assert document.where(("a", "gone", 0)) == "f:1: a.gone[0]"


@pytest.mark.parametrize(
    "value", ["1.10", "010", "0x10", "1_000", "-5", "1.0e+3", "22:22", ".inf", "2025-01-02", "9" * 20]
)
def test_a_number_that_may_be_a_version_is_asked_for_in_quotes(value: str) -> None:
    assert problems(f"name: {value}\n") == [
        f'f:1: name: `{value}` would be read as a number or a date\n  -> put it in quotes: "{value}"'
    ]


def test_where_a_number_is_wanted_quotes_are_not_the_advice() -> None:
    assert problems("count: 1.5\n") == [
        "f:1: count: must be a whole number\n  -> write digits, without quotes"
    ]


def test_problems_of_the_yaml_and_of_the_model_come_together_in_the_order_of_the_file() -> None:
    text = "nmae: x\nname: 1.5\npart: {size: no}\nname: y\nparts: [{on: 1}]\n"
    assert [problem.partition("\n")[0] for problem in problems(text)] == [
        "f:1: nmae: `nmae` is not a known key",
        "f:2: name: `1.5` would be read as a number or a date",
        "f:3: part.size: must be a whole number",
        "f:4: name: `name` is given twice (first on line 2)",
        "f:5: parts[0].on: must be true or false",
    ]


def test_a_nested_unknown_key_is_compared_with_the_keys_known_there() -> None:
    assert problems("parts: [{siez: 1}]\n") == [
        "f:1: parts[0].siez: `siez` is not a known key\n  -> perhaps you meant `size`"
    ]


def test_a_rename_holds_at_the_top_only() -> None:
    assert "use `name`" in problems("title: x\n", {"title": "use `name`"})[0]
    assert "known here: on, size" in problems("part: {title: x}\n", {"title": "use `name`"})[0]


def test_a_validator_gives_message_and_hint_whatever_the_value_holds() -> None:
    assert problems('name: "A; b"\n') == [
        "f:1: name: `A; b` is not lower case\n  -> write it small; like this"
    ]


@pytest.mark.parametrize("key", ["function-x", "", "[key]", "~", "true"])
def test_strange_keys_are_only_unknown_keys(key: str) -> None:
    (problem,) = problems(f'"{key}": 1\n')
    assert f"`{key}` is not a known key" in problem


def test_a_long_value_is_cut_in_messages() -> None:
    (problem,) = problems(f"name: 1.{'0' * 5000}\n")
    assert len(problem) < 600


def test_a_thousand_problems_are_not_a_thousand_lines() -> None:
    found = problems("".join(f"key{i}: 1\n" for i in range(1000)))
    assert len(found) == 51
    assert found[-1].startswith("f: 950 more problems")


HOSTILE = (
    *(b"&a [*a]", b"a: *b", b"<<: 1", b"=: 1", b": 1", b"a: b: c"),
    *(b"[" * 5000, b"{" * 5000, b"- " * 5000, b"? " * 5000, b"? {a: b}\n: c", b"? [a]\n"),
    *(b"!!set {a, b}", b"!!binary x", b"!<tag:yaml.org,2002:int> abc", b"!!bool maybe", b"! x", b"!a!b c"),
    *(b"%YAML 9.9\n--- x", b"a: |9\n x", b"a\n--- b", b"...", b"--- a\n...\n--- b", b"- [b, !!str e]"),
    *(b"@", b"`", b"'", b'"\\xZZ"', b"\t- a"),
    *(b"\x00", b"\xff\xfe", b"a: \x1b[2J", "a: \ud7ff\ue000\ufffe".encode()),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_refused_or_read_but_never_breaks(text: bytes) -> None:
    try:
        document = yamlfile.parse(text, "f")
        yamlfile.validate(document, Model)
    except InputError as error:
        for problem in error.problems:
            assert problem.where.startswith("f")
            assert problem.message
            assert problem.hint
            assert str(problem).replace("\n", "").isprintable()
    else:
        pytest.fail(f"{text!r} was taken for {document.data!r}")


def test_a_file_over_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match="is larger than 250000 bytes"):
        yamlfile.read(big)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        yamlfile.read(tmp_path)


def test_printable_keeps_text_and_spells_out_the_rest() -> None:
    assert yamlfile.printable("Größe 3") == "Größe 3"
    assert yamlfile.printable("a\x1b[31m\nb\u202e") == r"a\x1b[31m\nb\u202e"
