"""Files of torch.save: a zip archive of a pickle and of the tensors' bytes.

    NAME/data.pkl     the object, in which tensors refer to storages by key
    NAME/data/KEY     the bytes of a storage
    NAME/byteorder    `little` or `big`

The pickle is not given to Python's unpickler: `machine` reads it, and calls nothing that the file names.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from imagebuilder.checkpoints import entries, machine
from imagebuilder.checkpoints.machine import Name, Refused
from imagebuilder.checkpoints.tensor import (
    SIZES,
    Checkpoint,
    Incomparable,
    Read,
    Tensor,
    contiguous,
    require_place,
)

# Larger than any object of names and numbers; the tensors are not in it.
_LARGEST_PICKLE = 256 << 20
_LOCAL_HEADER = 30
_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Untyped": "uint8",
}
_DTYPES = {f"torch.{name}": name for name in SIZES}
_TYPES: Mapping[str, str] = {
    **{f"torch.{name}Storage": dtype for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": "uint8",
    **_DTYPES,
}


@dataclass(frozen=True, kw_only=True)
class _Storage:
    dtype: str
    size: int
    read: Read


def load(path: Path, read: Read, file: IO[bytes]) -> Checkpoint:
    """Read the object; the tensors are read when they are looked at.

    Args:
        path: the file's name.
        read: reads its bytes.
        file: the same file, for the archive's directory.

    Raises:
        Incomparable: it is not of this format, damaged, or holds more than tensors, numbers and texts.

    """
    members = _members(path, file)
    pickles = [name for name in members if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(pickles) != 1:
        hint = "TorchScript and other archives are not checkpoints: save `model.state_dict()`"
        raise Incomparable("is a zip archive, but not one of torch.save", where=str(path), hint=hint)
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in members:
        hint = "save `model.state_dict()` with torch.save"
        raise Incomparable("is a TorchScript archive, not a checkpoint", where=str(path), hint=hint)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in members.values()):
        raise Incomparable("has compressed parts, which torch.save never writes", where=str(path))

    def member(name: str) -> tuple[int, int]:
        if prefix + name not in members:
            raise Incomparable(f"lacks its part {name!r}: it is damaged", where=str(path))
        return _place(path, read, members[prefix + name])

    if f"{prefix}byteorder" in members and read(*member("byteorder")) != b"little":
        raise Incomparable("was written on a big-endian machine", where=str(path))
    offset, size = member("data.pkl")
    if size > _LARGEST_PICKLE:
        raise Incomparable(f"its object has {size} bytes, without any tensor", where=str(path))
    calls = _calls(str(path))
    try:
        root = machine.run(
            read(offset, size), calls, frozenset(_TYPES), partial(_storage, member=member, read=read)
        )
    except Refused as error:
        raise Incomparable(str(error), where=str(path), hint=error.hint) from None
    return entries.checkpoint(path, root)


def _members(path: Path, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise Incomparable(f"is damaged, or still being written: {error}", where=str(path)) from None
    members = {entry.filename: entry for entry in listed}
    if len(members) != len(listed):
        raise Incomparable("has two parts of one name", where=str(path))
    return members


def _place(path: Path, read: Read, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Find where a part's bytes begin, and how many they are (APPNOTE.TXT 4.3.7)."""
    header = read(entry.header_offset, _LOCAL_HEADER)
    if not header.startswith(b"PK\x03\x04"):
        raise Incomparable("its directory leads astray: it is damaged", where=str(path))
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return entry.header_offset + _LOCAL_HEADER + names, entry.file_size


def _storage(identity: Any, *, member: Callable[[str], tuple[int, int]], read: Read) -> _Storage:
    """Take what stands for a storage: ('storage', its class, its key, the device, its number of elements)."""
    kind, storage, key, _device, _count = identity
    if kind != "storage" or not isinstance(storage, Name) or storage.name not in _TYPES:
        raise Refused("refers to something that is no storage")
    start, size = member(f"data/{key}")
    return _Storage(
        dtype=_TYPES[storage.name], size=size, read=lambda offset, length: read(start + offset, length)
    )


def _calls(where: str) -> Mapping[str, Callable[..., object]]:
    """List what a pickle may call, and what is done instead."""

    def tensor(
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        _requires_grad: object = None,
        _hooks: object = None,
        metadata: object = None,
        *,
        dtype: str = "",
    ) -> Tensor:
        if (
            not isinstance(storage, _Storage)
            or not isinstance(shape, tuple)
            or not isinstance(strides, tuple)
        ):
            raise Refused("makes a tensor of something that is no storage")
        if metadata:
            raise Refused(
                "holds a tensor that is to be negated or conjugated when it is read",
                hint="save `tensor.resolve_conj().resolve_neg()`",
            )
        dtype = dtype or storage.dtype
        require_place(dtype, shape, strides, offset, storage.size, where)
        # Where a dimension has one element, or there are none at all, strides say nothing.
        plain = contiguous(shape)
        same = 0 in shape or all(
            length == 1 or a == b for length, a, b in zip(shape, strides, plain, strict=True)
        )
        return Tensor(
            dtype=dtype, shape=shape, strides=plain if same else strides, offset=offset, read=storage.read
        )

    def tensor_of_type(*arguments: Any) -> Tensor:
        *first, dtype = arguments[:7]
        if not isinstance(dtype, Name) or dtype.name not in _DTYPES:
            raise Refused("holds a tensor of an unknown type")
        return tensor(*first, *arguments[7:], dtype=_DTYPES[dtype.name])

    def parameter(data: Any, *_rest: object) -> Tensor:
        if not isinstance(data, Tensor):
            raise Refused("makes a parameter of something that is no tensor")
        return Tensor(
            dtype=data.dtype,
            shape=data.shape,
            strides=data.strides,
            offset=data.offset,
            read=data.read,
            parameter=True,
        )

    return {
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": tensor_of_type,
        "torch._utils._rebuild_parameter": parameter,
        "torch._utils._rebuild_parameter_with_state": parameter,
        **machine.CALLS,
        "torch.Size": tuple,
        "torch.device": lambda *words: "device " + ":".join(map(str, words)),
    }
