"""Files of the safetensors format: the length of a header, the header in JSON, then the tensors' bytes.

The format: https://github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from imagebuilder.checkpoints.entries import BUFFER_NAMES
from imagebuilder.checkpoints.tensor import (
    DIMENSIONS,
    SIZES,
    Checkpoint,
    Incomparable,
    Read,
    Tensor,
    contiguous,
)

# The format's own limit, which its README names.
_LARGEST_HEADER = 100_000_000
_LENGTH = 8
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "BOOL": "bool",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


def load(path: Path, read: Read, size: int) -> Checkpoint:
    """Read the header; the tensors are read when they are looked at.

    Args:
        path: the file's name.
        read: reads its bytes.
        size: how many there are.

    Raises:
        Incomparable: it is not of this format, or damaged.

    """
    header = _header(path, read, size)
    metadata = header.pop("__metadata__", {})
    start = _LENGTH + int.from_bytes(read(0, _LENGTH), "little")
    tensors = {name: _tensor(entry, read, start, size, f"{path}: {name}") for name, entry in header.items()}
    return Checkpoint(path=path, tensors=tensors, buffers=_listed(metadata))


def _header(path: Path, read: Read, size: int) -> dict[str, Any]:
    length = int.from_bytes(read(0, _LENGTH), "little") if size > _LENGTH else 0
    if not 2 <= length <= min(_LARGEST_HEADER, size - _LENGTH):
        raise Incomparable("is no safetensors file, or a damaged one", where=str(path))
    try:
        header = json.loads(read(_LENGTH, length), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Incomparable(f"its header cannot be read: {error}", where=str(path)) from None
    if not isinstance(header, dict):
        raise Incomparable("its header is no object", where=str(path))
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _tensor(entry: Any, read: Read, start: int, size: int, where: str) -> Tensor:
    damaged = Incomparable("its entry in the header cannot be: the file is damaged", where=where)
    if not isinstance(entry, dict):
        raise damaged
    shape, offsets = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2 or len(shape) > DIMENSIONS:
        raise damaged
    dtype = _TYPES.get(str(entry.get("dtype")))
    if dtype is None:
        raise Incomparable(f"holds a tensor of an unknown type, {entry.get('dtype')!r}", where=where)
    begin, end = offsets
    if not begin <= end <= size - start or end - begin != math.prod(shape) * SIZES[dtype]:
        raise damaged

    def read_here(offset: int, length: int) -> bytes:
        return read(start + begin + offset, length)

    return Tensor(dtype=dtype, shape=shape, strides=contiguous(shape), read=read_here)


def _naturals(values: Any) -> tuple[int, ...] | None:
    possible = isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
    return tuple(values) if possible else None


def _listed(metadata: Any) -> frozenset[str]:
    """Read the names of buffers: metadata of this format is text, so they stand there as a JSON list."""
    text = metadata.get(BUFFER_NAMES) if isinstance(metadata, dict) else None
    try:
        names = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        names = []
    return (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )
