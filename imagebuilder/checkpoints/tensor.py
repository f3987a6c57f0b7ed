"""What a checkpoint holds: tensors that are read from disk piece by piece, and plain values."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Literal

from imagebuilder.errors import ImagebuilderError

# Bytes of an element, by torch's name of its type.
SIZES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "bool": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1
    ),
}
_FORMATS = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "complex64": "f",
    "complex128": "d",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "bool": "B",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
}
DIMENSIONS = 64  # torch's own limit
_UNITS: Mapping[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
# A view may name one element many times over: up to here, in bytes, it is written out to be compared.
_WRITTEN_OUT = 1 << 30

Read = Callable[[int, int], bytes]
"""Reads bytes of a storage: from an offset on, so many."""


class Incomparable(ImagebuilderError):
    """A file that is no checkpoint, a damaged one, or one that holds what is not looked into."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor on disk: `shape` and `strides` in elements, `offset` the first of them in its storage.

    Attributes:
        dtype: torch's name of the type of its elements.
        shape, strides, offset: where in the storage each element is.
        read: reads bytes of the storage.
        parameter: the file says that it is one.

    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    read: Read = field(repr=False)
    parameter: bool = False

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def blocks(self, elements: int) -> Iterator[bytes]:
        """Read the elements row by row, so many at a time, as little-endian bytes."""
        width = SIZES[self.dtype]
        if not self.count:
            return
        if self.strides == contiguous(self.shape):
            for first in range(0, self.count, elements):
                length = min(elements, self.count - first)
                yield self.read((self.offset + first) * width, length * width)
            return
        data = self._gathered(width)
        for first in range(0, len(data), elements * width):
            yield data[first : first + elements * width]

    def _gathered(self, width: int) -> bytes:
        """Put the elements of a view into the order of its rows."""
        shape, strides, offset = self.shape, self.strides, self.offset
        if width > max(_UNITS):
            # No unit is as wide: take an element for a row of two halves.
            shape, width = (*shape, 2), width // 2
            strides, offset = (*(2 * stride for stride in strides), 1), 2 * offset
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        units = memoryview(self.read(offset * width, (last + 1) * width)).cast(_UNITS[width])
        length, stride = shape[-1], strides[-1]
        rows = []
        for place in product(*map(range, shape[:-1])):
            start = sum(index * step for index, step in zip(place, strides[:-1], strict=True))
            if stride:
                rows.append(units[start : start + (length - 1) * stride + 1 : stride].tobytes())
            else:
                rows.append(units[start : start + 1].tobytes() * length)
        return b"".join(rows)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a file holds, by dotted name.

    Attributes:
        path: the file.
        tensors: what is compared by numbers.
        values: what is compared as it is: numbers, texts, null, and empty containers.
        optimizer: names of what belongs to an optimizer's state.
        buffers: names that the file itself lists as buffers.

    """

    path: Path
    tensors: Mapping[str, Tensor]
    values: Mapping[str, object] = field(default_factory=dict)
    optimizer: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Give the strides of a tensor whose elements stand one after the other."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def require_place(  # noqa: PLR0917 - what a tensor is, and what it has to fit into
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, room: int, where: str
) -> None:
    """Make sure that all of a tensor lies in its storage.

    Args:
        dtype: the type of its elements.
        shape: its lengths.
        strides: elements from one to the next, in each dimension.
        offset: its first element in the storage.
        room: bytes of the storage.
        where: for the message.

    Raises:
        Incomparable: it does not, or it names the same elements over and over.

    """
    numbers = (*shape, *strides, offset)
    if dtype not in SIZES:
        raise Incomparable(f"holds a tensor of an unknown type, {dtype}", where=where)
    possible = len(shape) == len(strides) <= DIMENSIONS
    if not possible or not all(type(number) is int and number >= 0 for number in numbers):
        raise Incomparable("a tensor has a shape that cannot be: the file is damaged", where=where)
    count = math.prod(shape)
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if count and (last + 1) * SIZES[dtype] > room:
        raise Incomparable("a tensor reaches beyond the end of its data: the file is damaged", where=where)
    if count * SIZES[dtype] > max(room, _WRITTEN_OUT):
        raise Incomparable("a tensor repeats its elements to more than memory may hold", where=where)


def numbers(dtype: str, data: bytes) -> Sequence[float] | Sequence[complex] | None:
    """Read the elements of a block; None for a type whose numbers are not known here."""
    if dtype == "bfloat16":
        # The upper half of a float32.
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return struct.unpack(f"<{len(data) // 2}f", wide)
    if dtype in _EIGHT_BITS:
        return tuple(map(_EIGHT_BITS[dtype].__getitem__, data))
    if dtype not in _FORMATS:
        return None
    form = _FORMATS[dtype]
    found = struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data)
    return tuple(map(complex, found[0::2], found[1::2])) if dtype.startswith("complex") else found


def bits(dtype: str, data: bytes) -> Iterable[object]:
    """Read a block as patterns of bits, one an element."""
    width = SIZES[dtype]
    if width in _UNITS:
        return memoryview(data).cast(_UNITS[width])
    halves = memoryview(data).cast("Q")
    return tuple(zip(halves[0::2], halves[1::2], strict=True))


def _eight_bits(exponent: int, bias: int, *, infinite: bool) -> tuple[float, ...]:
    """List the values of an 8-bit float: sign, exponent, mantissa.

    The source is the OCP 8-bit Floating Point Specification, revision 1.0, section 5. With `infinite` the
    largest exponent means infinity and NaN, as in IEEE 754; else only all ones are NaN.
    """
    mantissa = 7 - exponent
    top, ones = (1 << exponent) - 1, (1 << mantissa) - 1
    found = []
    for code in range(128):
        power, part = code >> mantissa, code & ones
        if infinite and power == top:
            found.append(math.nan if part else math.inf)
        elif not infinite and code == 127:
            found.append(math.nan)
        elif power:
            found.append((1 + part / (ones + 1)) * 2.0 ** (power - bias))
        else:
            found.append(part / (ones + 1) * 2.0 ** (1 - bias))
    return tuple(chain(found, (-value for value in found)))


_EIGHT_BITS: Mapping[str, tuple[float, ...]] = {
    "float8_e4m3fn": _eight_bits(4, 7, infinite=False),
    "float8_e5m2": _eight_bits(5, 15, infinite=True),
}
