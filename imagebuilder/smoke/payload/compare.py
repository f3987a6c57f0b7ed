"""Compare two checkpoints of torch: which tensors differ and by how much, parameters and buffers apart.

    compare.py FIRST SECOND [--nonce NONCE]

Prints one line of JSON; ends with 1, and an `error` in it, where one cannot be read. A checkpoint may be the
state of a model, or hold it in a mapping with other things, such as an optimizer's state. Only tensors and
plain values are read from it: a file cannot run code here.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import common
import torch

# What torch's normalisation layers call their buffers; a state_dict does not tell buffers from parameters.
BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
SHOWN = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--nonce", default="")
    arguments = parser.parse_args()
    try:
        found: dict[str, Any] = compare(load(arguments.first), load(arguments.second))
    except Exception as error:  # noqa: BLE001 - torch.load raises whatever a damaged file makes it
        found = {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:500]}
    if arguments.nonce:
        common.say(arguments.nonce, **found)
    else:
        print(json.dumps(found))
    raise SystemExit(1 if "error" in found else 0)


def load(path: str) -> dict[str, Any]:
    """Read a checkpoint's leaves by their dotted names: tensors, and plain values."""
    leaves: dict[str, Any] = {}
    collect(torch.load(path, map_location="cpu", weights_only=True), (), leaves)
    return leaves


def collect(value: Any, path: tuple[str, ...], leaves: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            collect(inner, (*path, str(key)), leaves)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            collect(inner, (*path, str(index)), leaves)
    else:
        leaves[".".join(path)] = value


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Compare the leaves of two checkpoints.

    `parameters`, `buffers` and `others` (an optimizer's state, a step, ...) each have `compared`, how many
    both hold, `differ`, how many differ, and `different`, which and how; `only_in_...` are names.
    """
    groups: dict[str, dict[str, Any]] = {
        name: {"compared": 0, "different": []} for name in ("parameters", "buffers", "others")
    }
    for name in sorted(set(first) & set(second)):
        group = groups[kind(name, first[name])]
        group["compared"] += 1
        problem = difference(first[name], second[name])
        if problem:
            group["different"].append({"name": name, **problem})
    for group in groups.values():
        group["differ"] = len(group["different"])
        del group["different"][SHOWN:]
    return {
        **groups,
        "identical": set(first) == set(second) and not any(group["differ"] for group in groups.values()),
        "only_in_first": sorted(set(first) - set(second))[:SHOWN],
        "only_in_second": sorted(set(second) - set(first))[:SHOWN],
    }


def kind(name: str, value: Any) -> str:
    words = name.split(".")
    if not isinstance(value, torch.Tensor) or any("optim" in word.lower() for word in words):
        return "others"
    # Gradients, and so parameters, exist for these types only.
    learnt = value.is_floating_point() or value.is_complex()
    return "parameters" if learnt and words[-1] not in BUFFERS else "buffers"


def difference(one: Any, other: Any) -> dict[str, Any]:
    """Say how two leaves differ; empty where every bit is the same."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        same = type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124
        return {} if same else {"first": str(one)[:80], "second": str(other)[:80]}
    shapes = [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in (one, other)]
    if shapes[0] != shapes[1]:
        return {"first": shapes[0], "second": shapes[1]}
    if common.raw(one) == common.raw(other):
        return {}
    wide = torch.complex128 if one.is_complex() else torch.float64
    gap = (one.to(wide) - other.to(wide)).abs()
    unequal = ~((one == other) | ((one != one) & (other != other)))  # noqa: PLR0124 - NaN is not itself
    largest = float(one.to(wide).abs().max())
    most = float(gap.nan_to_num(math.inf).max())
    return {
        "of": shapes[0],
        "elements": int(unequal.sum()),
        "max_abs": most if math.isfinite(most) else None,
        "max_rel": most / largest if math.isfinite(most) and largest and math.isfinite(largest) else None,
    }


if __name__ == "__main__":
    main()
