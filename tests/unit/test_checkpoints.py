"""Checkpoints: what torch wrote is read as torch reads it, and differences are told as they are."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.checkpoints import compare as comparing
from imagebuilder.checkpoints import table
from imagebuilder.checkpoints.compare import Comparison, Rules, compare
from imagebuilder.checkpoints.files import opened
from imagebuilder.checkpoints.tensor import Checkpoint, Incomparable, Tensor, contiguous, numbers

CASES = Path(__file__).resolve().parents[1] / "cases" / "checkpoints"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "tensors.json").read_text(encoding="utf-8"))


def value_of(text: str) -> complex:
    found = complex(text)
    return found if "j" in text else found.real


def tensor(dtype: str, form: str, *values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    data = struct.pack(f"<{len(values)}{form}", *values)
    size = shape if shape is not None else (len(values),)
    return Tensor(
        dtype=dtype,
        shape=size,
        strides=contiguous(size),
        read=lambda offset, length: data[offset : offset + length],
    )


def floats(*values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    return tensor("float32", "f", *values, shape=shape)


def checkpoint(**tensors: Tensor) -> Checkpoint:
    return Checkpoint(path=Path("x.pt"), tensors=tensors)


def files(one: str, other: str, rules: Rules | None = None) -> Comparison:
    with opened(CASES / one) as first, opened(CASES / other) as second:
        return compare(first, second, rules or Rules())


# Reading


@pytest.mark.parametrize("file", ["tensors.pt", "tensors.safetensors"])
@pytest.mark.parametrize("elements", [1, 5, 1000])
def test_tensors_are_read_as_torch_reads_them(file: str, elements: int) -> None:
    with opened(CASES / file) as found:
        assert len(found.tensors) > 18
        for name, entry in found.tensors.items():
            wanted = EXPECTED[name]
            assert (entry.dtype, list(entry.shape)) == (wanted["dtype"], wanted["shape"]), name
            data = b"".join(entry.blocks(elements))
            assert data.hex() == wanted["bytes"], name
            values = numbers(entry.dtype, data) if data else ()
            assert values is not None
            assert [complex(value) for value in values] == [complex(value_of(v)) for v in wanted["values"]], (
                name
            )


def test_every_case_is_in_the_file_of_torch() -> None:
    with opened(CASES / "tensors.pt") as found:
        assert found.tensors.keys() == EXPECTED.keys()
        assert {name for name, entry in found.tensors.items() if entry.parameter} == {"parameter"}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_training_state_is_read_whatever_the_protocol(protocol: int) -> None:
    with opened(CASES / f"training-protocol-{protocol}.pt") as found:
        assert found.values["epoch"] == 3
        shown = [found.values[f"values.{index}"] for index in range(7)]
        assert shown == [0.25, None, "text", b"bytes", frozenset({1, 2}), 1 + 2j, 1 << 100]
        assert (found.values["values.7.0"], found.values["values.7.1"]) == (1, 2)
        assert "optimizer.state.0.exp_avg" in found.optimizer
        assert "optimizer.param_groups.0.lr" in found.optimizer
        assert "schedule.milestones.1" in found.values
        assert found.tensors["model.0.weight"].shape == (4, 1, 3, 3)


def test_protocols_differ_in_nothing() -> None:
    for protocol in (3, 4, 5):
        assert files("training-protocol-2.pt", f"training-protocol-{protocol}.pt").differences == ()


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.glob("refused-*")))
def test_what_is_not_looked_into_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(Incomparable) as caught, opened(CASES / name):
        pass
    (problem,) = caught.value.problems
    assert problem.where == str(CASES / name)
    assert problem.hint


# Comparing


def test_differences_of_a_changed_model_are_told_one_by_one() -> None:
    found = files("model.pt", "model-changed.pt")
    told = {difference.name: difference for difference in found.differences}
    assert {name: (d.kind, d.what) for name, d in told.items()} == {
        "0.weight": ("parameter", "numbers"),
        "0.bias": ("parameter", "shape"),
        "1.running_mean": ("buffer", "numbers"),
        "1.num_batches_tracked": ("buffer", "numbers"),
        "3.weight": ("parameter", "dtype"),
        "3.bias": ("parameter", "missing"),
        "new": ("parameter", "extra"),
    }
    weight = told["0.weight"].measure
    assert weight is not None
    assert (weight.count, weight.of, weight.first) == (1, 36, (3, 0, 1, 2))
    assert weight.max_abs == pytest.approx(0.5)
    assert told["0.bias"].values == ("float32 [4]", "float32 [2]")
    assert told["3.bias"].values == ("float32 [3]", "")
    assert found.equal == {"parameter": 2, "buffer": 1, "optimizer": 0, "value": 0}


def test_a_file_is_equal_to_itself_and_to_the_same_in_another_format() -> None:
    assert files("tensors.pt", "tensors.pt").differences == ()
    with opened(CASES / "tensors.safetensors") as found:
        kept = set(found.tensors)
    other = files("tensors.pt", "tensors.safetensors").differences
    assert {difference.what for difference in other} == {"missing"}
    assert {difference.name for difference in other} == set(EXPECTED) - kept


def test_parameters_saved_as_such_are_equal_to_their_numbers() -> None:
    assert files("model.pt", "model-parameters.pt").differences == ()


def test_the_measure_is_what_a_person_would_compute() -> None:
    a = floats(1, 2, -8, 4, 5, 6, shape=(2, 3))
    b = floats(1, 2.5, -8, 4, 3, 6, shape=(2, 3))
    found = comparing.measure(a, b, Rules())
    assert found == comparing.Measure(
        count=2,
        of=6,
        max_abs=2.0,
        relative=2.0 / 8.0,
        not_finite=0,
        first=(0, 1),
        first_values=("2", "2.5"),
    )


def test_a_difference_beyond_the_first_block_is_found_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_BLOCK", 4)
    a = floats(*range(12), shape=(3, 4))
    b = floats(*range(9), 99, 10, 11, shape=(3, 4))
    found = comparing.measure(a, b, Rules())
    assert found is not None
    assert (found.first, found.first_values) == ((2, 1), ("9", "99"))
    assert found.relative == pytest.approx(90 / 99)


def test_without_tolerance_every_bit_counts() -> None:
    found = comparing.measure(floats(0.0), floats(-0.0), Rules())
    assert found is not None
    assert (found.count, found.max_abs) == (1, 0.0)
    assert comparing.measure(floats(math.nan), floats(math.nan), Rules()) is None
    assert comparing.measure(floats(0.0), floats(-0.0), Rules(atol=1e-9)) is None


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        (Rules(), 3),
        (Rules(atol=0.05), 2),
        (Rules(atol=0.5), 1),
        (Rules(rtol=0.011), 2),
        (Rules(rtol=0.2), 1),
        (Rules(atol=1, rtol=0.02), 1),
    ],
    ids=str,
)
def test_tolerances_are_those_of_numpy(rules: Rules, count: int) -> None:
    found = comparing.measure(floats(1, 2, 3, 100), floats(1.01, 2.3, 3, math.inf), rules)
    assert found is not None
    assert (found.count, found.not_finite) == (count, 1)


@pytest.mark.parametrize(
    ("a", "b", "rules", "count"),
    [
        (math.nan, math.nan, Rules(atol=1), 0),
        (math.inf, math.inf, Rules(atol=1), 0),
        (math.inf, -math.inf, Rules(atol=1, rtol=1), 1),
        (math.nan, 1.0, Rules(atol=1e9), 1),
        (1.0, math.nan, Rules(), 1),
    ],
)
def test_what_is_no_number_is_counted_and_has_no_distance(
    a: float, b: float, rules: Rules, count: int
) -> None:
    found = comparing.measure(floats(a), floats(b), rules)
    assert (0 if found is None else found.count) == count
    if found is not None:
        assert (found.max_abs, found.relative, found.not_finite) == (None, None, 1)


def test_integers_and_complex_numbers_have_distances_too() -> None:
    whole = comparing.measure(tensor("int64", "q", 1 << 62, 5), tensor("int64", "q", -(1 << 62), 5), Rules())
    assert whole is not None
    assert (whole.max_abs, whole.relative) == (1 << 63, 2.0)
    a = tensor("complex64", "f", 0, 0, 3, 4, shape=(2,))
    b = tensor("complex64", "f", 0, 0, 0, 0, shape=(2,))
    found = comparing.measure(a, b, Rules())
    assert found is not None
    assert (found.count, found.max_abs, found.relative, found.first) == (1, 5.0, 1.0, (1,))


def test_a_type_whose_numbers_are_not_known_is_compared_bit_by_bit() -> None:
    a, b = tensor("float8_e8m0fnu", "B", 1, 2, 3), tensor("float8_e8m0fnu", "B", 1, 7, 3)
    found = comparing.measure(a, b, Rules())
    assert found is not None
    assert (found.count, found.max_abs, found.first_values) == (1, None, ("02", "07"))


@pytest.mark.parametrize(
    ("name", "entry", "kind"),
    [
        ("layer.weight", floats(1), "parameter"),
        ("bn.running_mean", floats(1), "buffer"),
        ("running_var", floats(1), "buffer"),
        ("bn.num_batches_tracked", tensor("int64", "q", 1), "buffer"),
        ("position_ids", tensor("int64", "q", 1), "buffer"),
        ("mask", tensor("bool", "B", 1), "buffer"),
        ("rotary.inv_freq", floats(1), "buffer"),
        ("listed", floats(1), "buffer"),
        ("opt.state.0.step", floats(1), "optimizer"),
    ],
)
def test_parameters_and_buffers_are_told_apart(name: str, entry: Tensor, kind: str) -> None:
    found = Checkpoint(
        path=Path("x"),
        tensors={name: entry},
        optimizer=frozenset({"opt.state.0.step"}),
        buffers=frozenset({"listed"}),
    )
    assert comparing.kind_of(name, found, found, Rules(buffers=("*.inv_freq",))) == kind


def test_only_what_is_asked_for_counts() -> None:
    everything = files("model.pt", "model-changed.pt").differences
    only: tuple[comparing.Kind, ...] = ("buffer",)
    buffers = files("model.pt", "model-changed.pt", Rules(only=only)).differences
    assert buffers == tuple(difference for difference in everything if difference.kind == "buffer")
    assert len(buffers) == 2


def test_values_are_equal_when_type_and_value_are() -> None:
    def values(*found: object) -> Checkpoint:
        return Checkpoint(path=Path("x"), tensors={}, values=dict(zip("abcdef", found, strict=False)))

    one = values(1, 1.0, math.nan, "x", True)
    assert compare(one, values(1, 1.0, math.nan, "x", True), Rules()).differences == ()
    found = compare(one, values(1.0, 1.1, 0.0, "y", 1), Rules())
    assert [(d.name, d.what) for d in found.differences] == [(name, "value") for name in "abcde"]
    assert [
        d.name for d in compare(one, values(1, 1.1, math.nan, "x", True), Rules(atol=0.2)).differences
    ] == []


# Telling


def test_the_text_has_counts_and_a_line_a_difference() -> None:
    text = table.lines(files("model.pt", "model-changed.pt"), most=20)
    assert text[0].endswith(": DIFFER")
    assert "  parameters       2 equal, 5 differ" in text
    assert "  buffers          1 equal, 2 differ" in text
    (weight,) = [line for line in text if line.startswith("parameter  0.weight")]
    assert "1 of 36 differ, max abs 0.5, relative " in weight
    assert "first at [3, 0, 1, 2]:" in weight
    assert "parameter  3.bias  only in the first: float32 [3]" in text
    assert "parameter  new  not in the first: float32 [2]" in text
    assert "parameter  3.weight  dtype: float32 [3, 16] against float16 [3, 16]" in text


def test_the_text_stops_after_as_many_as_asked_for() -> None:
    text = table.lines(files("model.pt", "model-changed.pt"), most=1)
    assert "parameter  ... and 4 more, see --most" in text


def test_json_says_the_same_and_is_json() -> None:
    found = table.as_json(files("model.pt", "model-changed.pt"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["equal"] is False
    assert found["counts"]["buffer"] == {"equal": 1, "differ": 2}
    assert {row["name"] for row in found["differences"]} >= {"0.weight", "new"}


def test_names_do_not_act_on_the_terminal() -> None:
    found = compare(checkpoint(**{"\x1b[31mred": floats(1)}), checkpoint(), Rules())
    assert table.lines(found, most=5)[-1] == "parameter  \\x1b[31mred  only in the first: float32 [1]"
