"""What no way to an image can beat: to download, copy, hash and inflate its wheels, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from isal import isal_zlib

from bench.sidebyside import samples
from bench.sidebyside.consumer import forget_files
from bench.sidebyside.samples import Sample
from bench.sidebyside.variants import Variant
from imagebuilder.core import process
from imagebuilder.host.site import detect
from imagebuilder.resolve import debian, python

DOWNLOAD, COPY, HASH, INFLATE = (f"limit: {name}" for name in ("download", "copy", "hash", "inflate"))
_CONNECTIONS = 6  # as many as imagebuilder opens
_PIECE = 1 << 20
_LOCAL_HEADER = 30  # bytes of a zip's local header before its name: APPNOTE.TXT, 4.3.7


def measure(recipe: str, variant: Variant, folder: Path, number: int) -> Iterator[Sample]:
    """Yield a sample of each limit: the files come from the network first, and then from this host's disk."""
    wheels = sorted(variant.lock.wheels, key=lambda wheel: -wheel.size)
    size = sum(wheel.size for wheel in wheels)
    # Where they are is known before the clock starts: looking it up is no part of the limit.
    glibc = debian.glibc(variant.lock.installed)
    found = python.locate_wheels(wheels, variant.lock.python, glibc, detect(), variant.lock.architecture)
    files = [folder / "wheels" / wheel.file for wheel in wheels]
    (folder / "wheels").mkdir(parents=True)
    (folder / "copies").mkdir()

    def copy(path: Path) -> None:
        shutil.copyfile(path, folder / "copies" / path.name)

    def sample(work: str, seconds: float, note: str) -> Sample:
        values = {samples.SECONDS: seconds, samples.BYTES: float(size)}
        return Sample(recipe=recipe, work=work, side="", round=number, values=values, note=note)

    try:
        pairs = [(found[wheel.sha256][0], path) for wheel, path in zip(wheels, files, strict=True)]
        yield sample(DOWNLOAD, _download(pairs), f"{_CONNECTIONS} connections, not hashed")
        forget_files()
        yield sample(COPY, _timed(copy, files), "from disk, not waiting for the disk to write")
        shutil.rmtree(folder / "copies")
        forget_files()
        yield sample(HASH, _timed(_hash, files), f"sha256, {process.cores()} cores, from disk")
        yield sample(INFLATE, _timed(_inflate, files), f"ISA-L, {process.cores()} cores, from memory")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _timed(work: Callable[[Path], None], files: Iterable[Path]) -> float:
    with ThreadPoolExecutor(process.cores()) as pool:
        started = time.monotonic()
        list(pool.map(work, files))
        return time.monotonic() - started


def _download(pairs: Iterable[tuple[str, Path]]) -> float:
    with detect().session() as session, ThreadPoolExecutor(_CONNECTIONS) as pool:

        def fetch(pair: tuple[str, Path]) -> None:
            url, path = pair
            if urlsplit(url).scheme == "file":  # of a wheel folder
                shutil.copyfile(unquote(urlsplit(url).path), path)
                return
            with session.get(url, stream=True) as reply, path.open("wb") as file:
                reply.raise_for_status()
                for piece in reply.iter_content(_PIECE):
                    file.write(piece)

        started = time.monotonic()
        list(pool.map(fetch, pairs))
        return time.monotonic() - started


def _hash(path: Path) -> None:
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def _inflate(path: Path) -> None:
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_DEFLATED:
                continue
            file.seek(member.header_offset)
            header = file.read(_LOCAL_HEADER)
            lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            file.seek(lengths, os.SEEK_CUR)
            inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
            left = member.compress_size
            while left and (piece := file.read(min(left, _PIECE))):
                left -= len(piece)
                inflater.decompress(piece)
