"""Compare two checkpoints entry by entry: what differs, and by how much."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import compress
from operator import ne, sub
from pathlib import Path
from typing import Any, Literal

from imagebuilder.checkpoints.tensor import SIZES, Checkpoint, Tensor, bits, numbers

Kind = Literal["parameter", "buffer", "optimizer", "value"]
KINDS: tuple[Kind, ...] = ("parameter", "buffer", "optimizer", "value")
What = Literal["numbers", "dtype", "shape", "value", "missing", "extra"]

# What torch's normalisation layers call their buffers.
_BUFFERS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
_BLOCK = 1 << 18  # elements that are looked at together
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How to compare.

    Without tolerances elements have to be equal bit for bit. With one, `a` and `b` agree where
    |a - b| <= atol + rtol * |b|, and where both are NaN.

    Attributes:
        atol, rtol: tolerances.
        only: which kinds of entries count.
        buffers: patterns of names that are buffers, besides those that are known.

    """

    atol: float = 0.0
    rtol: float = 0.0
    only: Collection[Kind] = KINDS
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far two tensors are apart.

    Attributes:
        count: elements that differ.
        of: elements of the tensor.
        max_abs: the largest difference of two numbers; None where no difference is finite, or known.
        relative: that difference in units of the largest number of either tensor.
        not_finite: elements of those that differ with a NaN or an infinity on one side at least.
        first: index of the first element that differs.
        first_values: what stands there in both.

    """

    count: int
    of: int
    max_abs: float | None
    relative: float | None
    not_finite: int
    first: tuple[int, ...]
    first_values: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One entry that differs: in its numbers, its type, its shape, its value, or in being there at all."""

    name: str
    kind: Kind
    what: What
    values: tuple[str, str]
    measure: Measure | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Another checkpoint against the first: entries that are equal, by kind, and those that are not."""

    first: Path
    other: Path
    equal: Mapping[Kind, int]
    differences: tuple[Difference, ...]

    def differing(self, kind: Kind) -> int:
        """Count the differences of one kind."""
        return sum(difference.kind == kind for difference in self.differences)


def compare(first: Checkpoint, other: Checkpoint, rules: Rules) -> Comparison:
    """Compare a checkpoint with the first one.

    Raises:
        Incomparable: a file is damaged.

    """
    equal: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    differences = []
    names = dict.fromkeys([*first.tensors, *first.values, *other.tensors, *other.values])
    for name in names:
        kind = kind_of(name, first, other, rules)
        if kind not in rules.only:
            continue
        found = _entry(name, kind, first, other, rules)
        if found is None:
            equal[kind] += 1
        else:
            differences.append(found)
    return Comparison(first=first.path, other=other.path, equal=equal, differences=tuple(differences))


def kind_of(name: str, first: Checkpoint, other: Checkpoint, rules: Rules) -> Kind:
    """Tell parameters from buffers; a state dict itself does not.

    In this order: what is in an optimizer's state belongs to it; a value is none of both; a buffer is what
    the rules' patterns or the file's own list name; a parameter is what the file says is one; a buffer is
    what is called as those of normalisation layers are, and what has no fractions, which cannot be trained.
    All else is a parameter.
    """
    tensors = [side.tensors[name] for side in (first, other) if name in side.tensors]
    if name in first.optimizer | other.optimizer:
        return "optimizer"
    if not tensors:
        return "value"
    if any(fnmatchcase(name, pattern) for pattern in rules.buffers) or name in first.buffers | other.buffers:
        return "buffer"
    if any(tensor.parameter for tensor in tensors):
        return "parameter"
    if name.rpartition(".")[2] in _BUFFERS:
        return "buffer"
    whole = all("float" not in tensor.dtype and "complex" not in tensor.dtype for tensor in tensors)
    return "buffer" if whole else "parameter"


def _entry(name: str, kind: Kind, first: Checkpoint, other: Checkpoint, rules: Rules) -> Difference | None:
    def sides(checkpoint: Checkpoint) -> tuple[bool, Any]:
        if name in checkpoint.tensors:
            return True, checkpoint.tensors[name]
        return name in checkpoint.values, checkpoint.values.get(name)

    (here, a), (there, b) = sides(first), sides(other)
    difference = partial(Difference, name=name, kind=kind, values=(_shown(a, here), _shown(b, there)))
    if not there:
        return difference(what="missing")
    if not here:
        return difference(what="extra")
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None if _same(a, b, rules) else difference(what="value")
    if a.dtype != b.dtype:
        return difference(what="dtype")
    if a.shape != b.shape:
        return difference(what="shape")
    measured = measure(a, b, rules)
    return difference(what="numbers", measure=measured) if measured else None


def measure(a: Tensor, b: Tensor, rules: Rules) -> Measure | None:
    """Say how far two tensors of one type and shape are apart; None where they are equal."""
    count, not_finite, position = 0, 0, 0
    furthest: float | None = None
    place = 0
    first: tuple[str, str] | None = None
    for one, two in zip(a.blocks(_BLOCK), b.blocks(_BLOCK), strict=True):
        if one != two:
            pairs = _pairs(a.dtype, one, two, rules)
            if pairs.indices and first is None:
                place, first = position + pairs.indices[0], pairs.first
            count += len(pairs.indices)
            not_finite += pairs.not_finite
            if pairs.furthest is not None:
                furthest = pairs.furthest if furthest is None else max(furthest, pairs.furthest)
        position += len(one) // SIZES[a.dtype]
    if first is None:
        return None
    largest = max(_largest(a), _largest(b)) if furthest is not None else 0.0
    return Measure(
        count=count,
        of=a.count,
        max_abs=furthest,
        relative=furthest / largest if furthest is not None and 0 < largest < math.inf else None,
        not_finite=not_finite,
        first=_index(place, a.shape),
        first_values=first,
    )


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The elements of two blocks that differ."""

    indices: Sequence[int]
    first: tuple[str, str]
    furthest: float | None
    not_finite: int


def _pairs(dtype: str, one: bytes, two: bytes, rules: Rules) -> _Pairs:
    # Passes in C over whole blocks, and a loop in Python only where numbers are no numbers.
    mask = bytes(map(ne, bits(dtype, one), bits(dtype, two)))
    indices: Sequence[int] = list(compress(range(len(mask)), mask))
    all_a, all_b = numbers(dtype, one), numbers(dtype, two)
    if all_a is None or all_b is None:
        width = SIZES[dtype]
        at = indices[0] * width
        raw = (one[at : at + width].hex(), two[at : at + width].hex())
        return _Pairs(indices=indices, first=raw, furthest=None, not_finite=0)
    values_a, values_b = list(compress(all_a, mask)), list(compress(all_b, mask))
    distances = _sizes(list(map(sub, values_a, values_b)))
    if rules.atol or rules.rtol:
        apart = [
            not (
                distance <= rules.atol + rules.rtol * _size(b)
                if math.isfinite(distance)
                else a != a and b != b  # noqa: PLR0124  (which only NaN is)
            )
            for a, b, distance in zip(values_a, values_b, distances, strict=True)
        ]
        indices = list(compress(indices, apart))
        values_a, values_b = list(compress(values_a, apart)), list(compress(values_b, apart))
        distances = list(compress(distances, apart))
    finite = list(filter(math.isfinite, distances))
    return _Pairs(
        indices=indices,
        first=(_number(values_a[0]), _number(values_b[0])) if values_a else ("", ""),
        furthest=max(finite, default=None),
        not_finite=len(distances) - len(finite),
    )


def _sizes(values: Sequence[complex]) -> list[float]:
    try:
        return list(map(abs, values))
    except OverflowError:  # the length of a complex number
        return list(map(_size, values))


def _size(value: complex) -> float:
    try:
        return abs(value)
    except OverflowError:
        return math.inf


def _largest(tensor: Tensor) -> float:
    """Find the largest finite number of a tensor."""
    found = 0.0
    for block in tensor.blocks(_BLOCK):
        sizes = _sizes(numbers(tensor.dtype, block) or ())
        found = max(found, max(filter(math.isfinite, sizes), default=0.0))
    return found


def _index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Make of a place in the order of rows an index."""
    index: list[int] = []
    for length in reversed(shape):
        position, rest = divmod(position, length)
        index.append(rest)
    return tuple(reversed(index))


def _same(a: object, b: object, rules: Rules) -> bool:
    """Compare plain values: of one type and equal; numbers within the tolerances, and NaN with NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b or abs(a - b) <= rules.atol + rules.rtol * abs(b)
    return a == b


def _shown(value: object, there: bool) -> str:
    if not there:
        return ""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return "a very large number"
    text = f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, frozenset) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def _number(value: complex) -> str:
    return f"{value:.9g}" if isinstance(value, float | complex) else str(value)
