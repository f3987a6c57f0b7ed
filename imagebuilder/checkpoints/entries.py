"""Nested dicts and lists of a checkpoint as one level of dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.checkpoints.tensor import Checkpoint, Incomparable, Tensor

# A file of a few hundred bytes can name itself over and over: so deep, and so many entries, are believed.
_DEEPEST = 64
_MOST = 1_000_000
# What an optimizer's state dict consists of; a file may have it under any name.
_OPTIMIZER = {"state", "param_groups"}
# Where a program that knows them may list its buffers, in the outermost dict.
BUFFER_NAMES = "buffer_names"
# What a tensor is called that is the whole of a file.
ROOT = "(root)"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    name: str
    value: object
    optimizer: bool


def checkpoint(path: Path, root: object) -> Checkpoint:
    """Name everything in an unpickled checkpoint.

    Raises:
        Incomparable: it is nested beyond belief, or two entries have the same name.

    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, object] = {}
    optimizer = set()
    for number, entry in enumerate(_walk(root, "", 0, optimizer=False, where=str(path))):
        if number >= _MOST:
            raise Incomparable(f"has more than {_MOST} entries", where=str(path))
        if entry.name in tensors or entry.name in values:
            raise Incomparable(f"has two entries that are called {entry.name!r}", where=str(path))
        if isinstance(entry.value, Tensor):
            tensors[entry.name] = entry.value
        else:
            values[entry.name] = entry.value
        if entry.optimizer:
            optimizer.add(entry.name)
    listed = root.get(BUFFER_NAMES) if isinstance(root, dict) else None
    return Checkpoint(
        path=path,
        tensors=tensors,
        values=values,
        optimizer=frozenset(optimizer),
        buffers=frozenset(map(str, listed if isinstance(listed, list | tuple | frozenset) else ())),
    )


def _walk(value: object, name: str, depth: int, *, optimizer: bool, where: str) -> Iterator[_Entry]:
    if depth > _DEEPEST:
        raise Incomparable(f"is nested more than {_DEEPEST} deep", where=where)
    if isinstance(value, dict) and value:
        inside = optimizer or value.keys() >= _OPTIMIZER
        pairs = ((_key(key, where), entry) for key, entry in value.items())
    elif isinstance(value, list | tuple) and value:
        inside = optimizer
        pairs = ((str(index), entry) for index, entry in enumerate(value))
    else:
        plain = frozenset(value) if isinstance(value, set) else value
        yield _Entry(name=name or ROOT, value=plain, optimizer=optimizer)
        return
    for key, entry in pairs:
        yield from _walk(entry, f"{name}.{key}" if name else key, depth + 1, optimizer=inside, where=where)


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, float) or (isinstance(key, int) and abs(key) < 1 << 64):
        return str(key)
    raise Incomparable("has a dict with keys that are neither text nor numbers", where=where)
