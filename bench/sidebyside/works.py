"""The kinds of work, and one measurement of one of them on one side."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import requests
from isal import isal_zlib

from bench.sidebyside import samples
from bench.sidebyside.meter import metered
from bench.sidebyside.samples import Sample
from bench.sidebyside.sides import Side, stored
from bench.sidebyside.variants import Variant, change_a_line

# In the order of a round: what comes after `cold` builds on what that left.
WORKS: Mapping[str, str] = {
    "cold": "nothing is built, downloaded or pushed yet; the base is in place",
    "nothing-changed": "the same again",
    "other-nccl": "one pin changed: another NCCL",
    "other-framework": "the framework's pin changed",
    "package-added": "one more package from the index",
    "other-base": "the Debian base changed; the new one is in place",
    "line-changed": "one line of the user's own 200 modules changed",
    "warm": "downloads are cached where the side caches them, and nothing is built",
    "warm-first": "the same, but the lock does not list the wheels' layers yet",
    "matrix": "six recipes that share most components, one after the other, nothing cached before",
}
_PIECE = 1 << 20
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a measurement needs.

    Attributes:
        recipe: its name.
        folder: on the disk that is measured.
        variants: by name: `main`, and each kind of work that changes something.
        matrix: the six recipes.
        imports: the module that a consumer imports first.
        sides: all of them; what serves one is not counted for another.

    """

    recipe: str
    folder: Path
    variants: Mapping[str, Variant]
    matrix: Sequence[Variant]
    imports: str
    sides: Sequence[Side]


def measure(bench: Bench, side: Side, work: str, number: int, *, whole: bool) -> Sample:
    """Do one kind of work on one side.

    Args:
        bench: the recipe and its variants.
        side: who does it.
        work: one of `WORKS`.
        number: of the round.
        whole: also inflate the image that was pushed, to tell its unpacked size.

    """
    if work == "matrix":
        for each in bench.sides:  # the last work of a round: nothing needs what is there
            each.stop()
    if work in {"cold", "matrix"}:
        side.reset()
    chosen = bench.matrix if work == "matrix" else [bench.variants.get(work, bench.variants["main"])]
    excluding = [each.registry.pid for each in bench.sides]
    excluding += [pid for each in bench.sides if each is not side for pid in each.pids]
    values = {samples.BUILD: 0.0, samples.PUSH: 0.0}
    before = stored(side)
    memory = written = 0
    for variant in chosen:
        if work == "warm-first":
            variant.forget_layers()
        if work == "line-changed" and variant.project:
            change_a_line(variant.project)
        with metered(bench.folder, excluding=excluding) as building:
            side.build(variant, rebuild=work in {"warm", "warm-first"})
        with metered(bench.folder, excluding=excluding) as pushing:
            side.push(variant)
        values[samples.BUILD] += building.seconds
        values[samples.PUSH] += pushing.seconds
        memory = max(memory, building.memory, pushing.memory)
        written += (building.written or 0) + (pushing.written or 0)
        values |= sizes(side.name_of(variant), unpacked=whole)
        if work not in {"cold", "nothing-changed", "line-changed"}:
            side.tidy(variant)
    values[samples.MEMORY] = memory
    if building.written is not None:
        values[samples.WRITTEN] = written
    values[samples.STORED] = stored(side)
    values[samples.PUSHED] = values[samples.STORED] - before
    return Sample(recipe=bench.recipe, work=work, side=side.name, round=number, values=values)


def sizes(reference: str, *, unpacked: bool) -> dict[str, float]:
    """Read an image's size as its registry has it: all layers packed, and their tars."""
    url, manifest = _manifest(reference)
    layers = manifest["layers"]
    found = {samples.PACKED: float(sum(layer["size"] for layer in layers))}
    if unpacked:
        found[samples.UNPACKED] = float(sum(_unpacked(f"{url}/blobs/{layer['digest']}") for layer in layers))
    return found


def _manifest(reference: str) -> tuple[str, dict[str, Any]]:
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    url = f"http://{host}/v2/{repository}"
    reply = requests.get(f"{url}/manifests/{tag}", headers={"Accept": _MANIFESTS}, timeout=60)
    reply.raise_for_status()
    return url, json.loads(reply.content)


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _unpacked(url: str) -> int:
    size, inflater = 0, None
    for piece in _pieces(url):
        data = piece
        while data:
            inflater = inflater or _inflater(data)
            size += len(inflater.decompress(data))
            # gzip may have more than one member, zstd more than one frame.
            data, inflater = (inflater.unused_data, None) if inflater.eof else (b"", inflater)
    return size


def _inflater(head: bytes) -> _Inflater:
    if head[:4] == b"\x28\xb5\x2f\xfd":  # RFC 8878, 3.1.1
        from backports import zstd

        return zstd.ZstdDecompressor()
    inflater: _Inflater = isal_zlib.decompressobj(16 + zlib.MAX_WBITS)
    return inflater


def _pieces(url: str) -> Iterator[bytes]:
    with requests.get(url, stream=True, timeout=600) as reply:
        reply.raise_for_status()
        yield from reply.iter_content(_PIECE)
