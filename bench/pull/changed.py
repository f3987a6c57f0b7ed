"""How many bytes of an update are new: the files that no layer of the image before has, packed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

# The last bytes of a layer with a table: see imagebuilder/layers/stargz.py.
_FOOTER = 51
_BLOCK = 512


def blobs(folder: Path) -> frozenset[Path]:
    """Return the files of all blobs of a registry, below its folder."""
    return frozenset(path for path in folder.rglob("data") if path.is_file())


def changed_files(before: Iterable[Path], after: Iterable[Path]) -> tuple[int, int]:
    """Count the bytes of files that only the blobs `after` have, and of their tables.

    Blobs without a table (configs, manifests, layers of bytecode) count as one file each.
    """
    known = {entry["digest"] for blob in before for entry in _files(_table(blob)[0])}
    new = tables = 0
    for blob in after:
        table, begin = _table(blob)
        if not table:
            new += blob.stat().st_size
            continue
        tables += blob.stat().st_size - begin
        starts = sorted({entry["offset"] for entry in table["entries"] if "offset" in entry} | {begin})
        ends = dict(pairwise(starts))
        mine = {entry["digest"]: entry["offset"] for entry in _files(table)}
        new += sum(ends[offset] - offset for digest, offset in mine.items() if digest not in known)
    return new, tables


def _files(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = table.get("entries", ())
    return [entry for entry in entries if entry["type"] == "reg" and entry.get("size") and "offset" in entry]


def _table(blob: Path) -> tuple[Mapping[str, Any], int]:
    """Return a layer's table of contents, and where it begins; nothing if the blob has none."""
    size = blob.stat().st_size
    with blob.open("rb") as file:
        file.seek(max(size - _FOOTER, 0))
        footer = file.read()
        if footer[32:38] != b"STARGZ":
            return {}, size
        begin = int(footer[16:32], 16)
        file.seek(begin)
        tar = gzip.decompress(file.read(size - _FOOTER - begin))
    length = int(tar[124:135], 8)
    return json.loads(tar[_BLOCK : _BLOCK + length]), begin
