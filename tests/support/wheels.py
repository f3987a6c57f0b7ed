"""Wheels made by code, and layers read back with Python's own gzip and tarfile."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import random
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock.model import Wheel
from imagebuilder.plan import WheelLayer
from imagebuilder.store import LayerRecord, Store

PYTHON = "3.13"
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a wheel: content, Unix mode, and how the zip holds it."""

    data: bytes = b""
    mode: int = stat.S_IFREG | 0o644
    method: int = zipfile.ZIP_DEFLATED
    zip64: bool = False


Files = Mapping[str, bytes | File]


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 repeatable test data


def standard(name: str, version: str, files: Files) -> dict[str, bytes | File]:
    """Add the metadata that makes files a wheel; RECORD last, as the specification wants it."""
    info = f"{name}-{version}.dist-info"
    complete = {
        **files,
        f"{info}/METADATA": METADATA.format(name=name, version=version).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
    }
    return {**complete, f"{info}/RECORD": record(complete, f"{info}/RECORD")}


def record(files: Files, own: str) -> bytes:
    rows = [f"{path},sha256={encoded(_data(file))},{len(_data(file))}" for path, file in files.items()]
    return "\n".join([*rows, f"{own},,\n"]).encode()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            file = content if isinstance(content, File) else File(data=content)
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.external_attr = file.mode << 16
            info.compress_type = file.method
            with archive.open(info, "w", force_zip64=file.zip64) as member:
                member.write(file.data)
    return path


def make_wheel(folder: Path, files: Files, name: str = "demo", version: str = "1.0") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    return write_zip(path, standard(name, version, files))


def locked(path: Path, file: str = "") -> Wheel:
    name, version = path.name.split("-")[:2]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    return Wheel(
        name=canonicalize_name(name),
        version=version,
        file=file or path.name,
        size=size,
        sha256=digest,
        component="python",
    )


def splice(
    paths: Sequence[Path],
    store: Store,
    advance: Advance = no_advance,
    python: str = PYTHON,
) -> LayerRecord:
    wheels = tuple(locked(path) for path in paths)
    layer = WheelLayer(component="python", wheels=wheels, python=python)
    places = {wheel.sha256: path for wheel, path in zip(wheels, paths, strict=True)}
    return build_wheel_layer(layer, places, store, advance)


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """One path of a layer; `data` is a file's content or a link's target."""

    kind: str
    mode: int
    data: bytes


def unpack(record: LayerRecord, store: Store) -> dict[str, Unpacked]:
    """Read a layer with nothing of ours, and hold its record to what is there."""
    blob = store.blob(record.digest).read_bytes()
    assert record.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert record.size == len(blob)
    tar = gzip.decompress(blob)
    assert record.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert record.unpacked == len(tar)
    found = read_tar(tar)
    if record.toc:
        assert by_table(blob, record.toc) == found
    return found


def by_table(blob: bytes, digest: str) -> dict[str, Unpacked]:
    """Read a layer as an engine does that fetches single files: footer, table, one gzip member for each file.

    The format is that of docs/estargz.md of the stargz snapshotter; nothing here is ours.
    """
    footer = blob[-51:]
    assert footer[:16] == b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x1a\0SG\x16\0"
    assert footer[32:] == b"STARGZ\x01\0\0\xff\xff" + bytes(8)
    inflate = zlib.decompressobj(31)
    with tarfile.open(fileobj=io.BytesIO(inflate.decompress(blob[int(footer[16:32], 16) :]))) as tar:
        (entry,) = tar.getmembers()
        member = tar.extractfile(entry)
        assert entry.name == "stargz.index.json"
        assert member
        text = member.read()
    assert inflate.unused_data == footer
    assert digest == f"sha256:{hashlib.sha256(text).hexdigest()}"
    table = json.loads(text)
    root, *rows, landmark = table["entries"]
    assert table["version"] == 1
    assert (root["name"], root["type"], root["mode"]) == ("./", "dir", 0o755)
    assert landmark["name"] == ".no.prefetch.landmark"
    assert _content(blob, landmark) == b"\x0f"
    offsets = [row["offset"] for row in rows if row.get("size")]
    assert offsets == sorted(set(offsets))
    kinds = {"reg": "file", "dir": "dir", "symlink": "link"}
    found = {}
    for row in rows:
        assert (row["uid"], row["gid"], row["modtime"]) == (0, 0, "1970-01-01T00:00:00Z")
        data = _content(blob, row) if row["type"] == "reg" else row.get("linkName", "").encode()
        found[row["name"].rstrip("/")] = Unpacked(kind=kinds[row["type"]], mode=row["mode"], data=data)
    return found


def _content(blob: bytes, row: dict[str, Any]) -> bytes:
    """Unpack a file from where its member begins; a large file has several members."""
    data, rest = b"", blob[row.get("offset", 0) :]
    while len(data) < row.get("size", 0):
        inflate = zlib.decompressobj(31)
        data += inflate.decompress(rest)
        rest = inflate.unused_data
    data = data[: row.get("size", 0)]
    if data:
        assert row["digest"] == row["chunkDigest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    return data


def read_tar(tar: bytes) -> dict[str, Unpacked]:
    found: dict[str, Unpacked] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for entry in archive:
            assert entry.name not in found
            assert (entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, 0, "", "")
            kind = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "dir", tarfile.SYMTYPE: "link"}[entry.type]
            member = archive.extractfile(entry) if kind == "file" else None
            data = member.read() if member else entry.linkname.encode()
            found[entry.name] = Unpacked(kind=kind, mode=entry.mode, data=data)
    return found


def _data(file: bytes | File) -> bytes:
    return file if isinstance(file, bytes) else file.data
