"""Compare checkpoints with torch itself: which entries differ, and by how much.

    compare.py FILE FILE... [--atol N] [--rtol N] [--only KIND]... [--buffer PATTERN]... [--memory BYTES]

The verb `compare-checkpoints` runs it, in an image or with a Python of the host; `replicas.py` imports it.
It prints one line of JSON: `comparisons`, one for each file after the first, or `error`, with the `hint` and
the number of the `file`, where a file cannot be compared.

Files are loaded with `weights_only`: torch makes tensors and plain values, and calls nothing else that a file
names. Depth, names, entries and views are bounded, because a small file can hold itself many times over.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import re
import resource
import sys
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError as error:
    torch, NO_TORCH = None, str(error)

KINDS = ("parameter", "buffer", "optimizer", "value")
# What torch's normalisation layers call their buffers.
BUFFERS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
# What an optimizer's state dict consists of; a file may have it under any name.
OPTIMIZER = frozenset(("state", "param_groups"))
# Where a program that knows them may list its buffers, in the outermost dict.
BUFFER_NAMES = "buffer_names"
DEEPEST = 64
MOST = 200_000
LONGEST = 1000
SHOWN = 60
ANSWER = 64 << 20
BLOCK = 1 << 22  # elements that are compared together
WRITTEN_OUT = 1 << 30  # bytes of a view that names its elements many times over
HEADER = 100_000_000  # the safetensors format's own limit, which its README names
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, set, frozenset, dict, list, tuple)
PICKLE = b"\x80"
NEITHER = "is neither a file of torch.save nor of safetensors, or it is damaged"
SAVE_STATE = "save `model.state_dict()`, not the model, and plain values beside it"
SAFETENSORS = {
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


class Refused(Exception):
    """A file that cannot be compared."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Rules:
    """How to compare; without tolerances every bit counts."""

    atol: float = 0.0
    rtol: float = 0.0
    only: Collection[str] = KINDS
    buffers: Collection[str] = ()


@dataclass
class Checkpoint:
    """What a file holds: tensors and plain values by dotted name, and which names are known for what."""

    entries: dict[str, Any] = field(default_factory=dict)
    optimizer: set[str] = field(default_factory=set)
    buffers: frozenset[str] = frozenset()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--atol", type=float, default=0.0)
    parser.add_argument("--rtol", type=float, default=0.0)
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--buffer", action="append", default=[])
    parser.add_argument("--memory", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.memory:
        resource.setrlimit(resource.RLIMIT_DATA, (arguments.memory, arguments.memory))
    rules = Rules(arguments.atol, arguments.rtol, arguments.only or KINDS, arguments.buffer)
    text = json.dumps(answer(arguments.files, rules))
    if len(text) > ANSWER:
        text = json.dumps({"error": f"the differences take more than {ANSWER >> 20} MiB to list", "hint": ""})
    print(text)


def answer(files: list[str], rules: Rules) -> dict[str, Any]:
    """Compare each file with the first one; an answer always, whatever a file does to torch."""
    if torch is None:
        return {"error": f"this Python cannot import torch: {NO_TORCH}", "hint": ""}
    comparisons: list[dict[str, Any]] = []
    number = 0
    try:
        first = load(files[0])
        while len(comparisons) < len(files) - 1:
            number = len(comparisons) + 1
            comparisons.append(compare(first, load(files[number]), rules))
    except Refused as refusal:
        return {"error": str(refusal), "hint": refusal.hint, "file": number}
    except MemoryError:
        return {"error": "needs more memory than it is given", "hint": "", "file": number}
    except Exception as error:  # noqa: BLE001 - torch raises whatever a damaged file makes it
        return {**explained(error), "file": number}
    return {"comparisons": comparisons}


def explained(error: Exception) -> dict[str, str]:
    """Say in one line what torch says in many; its own hint is to load without `weights_only`."""
    text = str(error)
    if named := re.search(r"GLOBAL (\S+)", text):
        return {
            "error": f"names `{named[1][:200]}`, which torch does not load as weights",
            "hint": SAVE_STATE,
        }
    if said := re.search(r"WeightsUnpickler error: ([^\n]*)", text):
        return {"error": f"torch refuses to load it: {said[1][:300]}", "hint": SAVE_STATE}
    line = text.partition("\n")[0][:300]
    return {"error": f"cannot be read: {type(error).__name__}: {line}", "hint": ""}


def load(path: str) -> Checkpoint:
    """Read a file of torch.save or safetensors; what is in it decides, not its name."""
    with Path(path).open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return named(*safetensors(path))
    # Tensors stay on disk until they are looked at; the format of torch before 1.6 is a plain pickle.
    mapped = zipfile.is_zipfile(path)
    if not mapped and start[:1] != PICKLE:
        raise Refused(NEITHER)
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    return named(loaded, loaded.get(BUFFER_NAMES) if isinstance(loaded, dict) else None)


def safetensors(path: str) -> tuple[dict[str, Any], Any]:
    """Read the tensors, and the list of buffers that the metadata may hold as JSON text.

    The format is the length of a header, the header in JSON, and the tensors' bytes:
    https://github.com/huggingface/safetensors, README, "Format".
    """
    with Path(path).open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(data[:8], "little")
    if start > min(HEADER, len(data)):
        raise Refused(NEITHER)
    try:
        header = json.loads(data[8:start], object_pairs_hook=unique)
        listed = json.loads(header.pop("__metadata__", {}).get(BUFFER_NAMES, "null"))
        tensors = {name: stored(data, start, entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        raise Refused(f"has a damaged header: {type(error).__name__}: {error}"[:300]) from None
    return tensors, listed


def stored(data: mmap.mmap, start: int, entry: dict[str, Any]) -> Any:
    dtype, shape = getattr(torch, SAFETENSORS[entry["dtype"]]), entry["shape"]
    begin, end = (start + offset for offset in entry["data_offsets"])
    count = math.prod(shape)
    possible = start <= begin <= end <= len(data) and min(shape, default=0) >= 0
    if not possible or end - begin != count * dtype.itemsize:
        raise ValueError("a tensor's place or size cannot be")
    flat = (
        torch.frombuffer(data, dtype=dtype, count=count, offset=begin)
        if count
        else torch.empty(0, dtype=dtype)
    )
    return flat.reshape(shape)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands there twice")
    return made


def named(root: Any, listed: Any) -> Checkpoint:
    """Name everything in a checkpoint."""
    names = listed if isinstance(listed, list | tuple | set) else ()
    made = Checkpoint(buffers=frozenset(name for name in names if isinstance(name, str)))
    for name, value, optimizer in leaves(root, "", 0, False):
        if len(made.entries) >= MOST:
            raise Refused(f"has more than {MOST} entries")
        if name in made.entries:
            raise Refused(f"has two entries that are called {name!r}")
        made.entries[name] = checked(name, value)
        if optimizer:
            made.optimizer.add(name)
    return made


def leaves(value: Any, name: str, depth: int, optimizer: bool) -> Iterator[tuple[str, Any, bool]]:
    if depth > DEEPEST:
        raise Refused(f"is nested more than {DEEPEST} deep")
    if len(name) > LONGEST:
        raise Refused(f"has a name of more than {LONGEST} characters")
    if isinstance(value, dict) and value:
        optimizer = optimizer or value.keys() >= OPTIMIZER
        pairs: Any = value.items()
    elif isinstance(value, list | tuple) and value:
        pairs = enumerate(value)
    else:
        yield name or "(root)", value, optimizer
        return
    for key, inner in pairs:
        if not isinstance(key, str | int | float | None) or (isinstance(key, int) and abs(key) >> 64):
            raise Refused("has a dict with keys that are neither text nor numbers", SAVE_STATE)
        yield from leaves(inner, f"{name}.{key}" if name else str(key), depth + 1, optimizer)


def checked(name: str, value: Any) -> Any:
    """Refuse what has no elements to compare one by one."""
    if isinstance(value, torch.Tensor):
        kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
        if kind != "strided" or value.device.type != "cpu" or value.is_nested:
            raise Refused(
                f"holds a tensor that is not plain ({kind}, on {value.device}): {name!r}",
                "save it as a dense one",
            )
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > max(stored, WRITTEN_OUT):
            raise Refused(f"repeats the elements of {name!r} to more than {WRITTEN_OUT >> 30} GiB")
        return value.resolve_conj().resolve_neg()
    if not isinstance(value, (*PLAIN, torch.dtype, torch.device)):
        raise Refused(
            f"holds a {type(value).__name__} in {name!r}; only tensors and plain values are compared"
        )
    return value


def compare(first: Checkpoint, other: Checkpoint, rules: Rules) -> dict[str, Any]:
    """Compare a checkpoint with the first one: how many entries of each kind, and each difference."""
    counts = {kind: {"equal": 0, "differ": 0} for kind in KINDS}
    differences = []
    for name in dict.fromkeys([*first.entries, *other.entries]):
        kind = kind_of(name, first, other, rules)
        if kind not in rules.only:
            continue
        found = difference(name, first.entries, other.entries, rules)
        counts[kind]["differ" if found else "equal"] += 1
        if found:
            differences.append({"name": name, "kind": kind, **found})
    return {"counts": counts, "differences": differences}


def kind_of(name: str, first: Checkpoint, other: Checkpoint, rules: Rules) -> str:
    """Tell parameters from buffers, which a state dict does not.

    The order of the rules is in docs/how-to/compare-checkpoints.md.
    """
    sides = [side.entries[name] for side in (first, other) if name in side.entries]
    tensors = [value for value in sides if isinstance(value, torch.Tensor)]
    if name in first.optimizer or name in other.optimizer:
        return "optimizer"
    if not tensors:
        return "value"
    listed = name in first.buffers or name in other.buffers
    if listed or any(fnmatchcase(name, pattern) for pattern in rules.buffers):
        return "buffer"
    if any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors):
        return "parameter"
    # Gradients, and so parameters, exist for these types only.
    learnt = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return "parameter" if learnt and name.rpartition(".")[2] not in BUFFERS else "buffer"


def difference(
    name: str, first: dict[str, Any], other: dict[str, Any], rules: Rules
) -> dict[str, Any] | None:
    if name not in other:
        return {"what": "missing", "first": shown(first[name]), "other": None}
    if name not in first:
        return {"what": "extra", "first": None, "other": shown(other[name])}
    a, b = first[name], other[name]
    both = {"first": shown(a), "other": shown(b)}
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return None if same(a, b, rules) else {"what": "value", **both}
    if a.dtype != b.dtype:
        return {"what": "dtype", **both}
    if a.shape != b.shape:
        return {"what": "shape", **both}
    measured = measure(a.detach(), b.detach(), rules)
    return {"what": "numbers", **both, **measured} if measured else None


def measure(a: Any, b: Any, rules: Rules) -> dict[str, Any] | None:
    """Say how far two tensors of one type and shape are apart; None where they are equal."""
    count = not_finite = 0
    furthest, first = -1.0, None
    flat = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.numel(), BLOCK):
        one, two = (side[start : start + BLOCK] for side in flat)
        unequal = (bits(one) != bits(two)).any(1)
        if not bool(unequal.any()):
            continue
        gaps = distances(one, two)
        if rules.atol or rules.rtol:
            close = gaps <= rules.atol + rules.rtol * wide(two).abs()
            # NaN is not itself, and agrees with itself.
            unequal &= ~torch.where(gaps.isfinite(), close, (one != one) & (two != two))  # noqa: PLR0124
        places = unequal.nonzero().flatten()
        if not len(places):
            continue
        finite = gaps[places][gaps[places].isfinite()]
        count += len(places)
        not_finite += len(places) - len(finite)
        furthest = max(furthest, float(finite.max())) if len(finite) else furthest
        if first is None:
            at = int(places[0])
            first = start + at, [number(one[at]), number(two[at])]
    if first is None:
        return None
    largest = max(map(largest_of, flat))
    return {
        "count": count,
        "of": a.numel(),
        "max_abs": furthest if furthest >= 0 else None,
        "relative": furthest / largest if furthest >= 0 and largest else None,
        "not_finite": not_finite,
        "index": index(first[0], a.shape),
        "values": first[1],
    }


def bits(flat: Any) -> Any:
    """View elements as rows of bytes."""
    width = flat.element_size()
    plain = torch.view_as_real(flat) if flat.is_complex() else flat
    return plain.contiguous().view(torch.uint8).reshape(-1, width)


def wide(flat: Any) -> Any:
    return flat.to(torch.complex128 if flat.is_complex() else torch.float64)


def distances(one: Any, two: Any) -> Any:
    """Give |a - b| of each pair as float64; integers, which may have more digits, are subtracted first."""
    if one.is_floating_point() or one.is_complex():
        return (wide(one) - wide(two)).abs()
    if one.dtype == torch.uint64:
        # Keeps the order and the differences, in a type that has an order here.
        one, two = (side.view(torch.int64) ^ torch.iinfo(torch.int64).min for side in (one, two))
    one, two = one.to(torch.int64), two.to(torch.int64)
    gaps = torch.where(one > two, one - two, two - one)
    # A gap of 2^63 and more wraps around to a negative number.
    return torch.where(gaps < 0, gaps.double() + 2.0**64, gaps.double())


def largest_of(flat: Any) -> float:
    """Find the largest finite number of a tensor."""
    found = 0.0
    for start in range(0, len(flat), BLOCK):
        sizes = wide(flat[start : start + BLOCK]).abs()
        finite = sizes[sizes.isfinite()]
        found = max(found, float(finite.max())) if len(finite) else found
    return found


def index(position: int, shape: Any) -> list[int]:
    """Make of a place in the order of rows an index."""
    places = []
    for length in reversed(shape):
        position, rest = divmod(position, length)
        places.append(rest)
    return places[::-1]


def number(element: Any) -> str:
    value = element.item()
    return f"{value:.9g}" if isinstance(value, float | complex) else str(value)


def same(a: Any, b: Any, rules: Rules) -> bool:
    """Compare plain values: of one type and equal; numbers within the tolerances, and NaN with NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b or abs(a - b) <= rules.atol + rules.rtol * abs(b)
    return bool(a == b)


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, int) and abs(value) >> 128:
        return "a very large number"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"[:SHOWN]
    text = repr(value[:SHOWN] if isinstance(value, str | bytes | bytearray) else value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 4]} ..."


if __name__ == "__main__":
    main()
    sys.stdout.flush()
