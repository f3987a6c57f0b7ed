"""Runs in a slim image as root: prints as JSON what is missing there, and what of it something needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path


def main() -> None:
    lists = (file.read_text() for file in Path("/var/lib/dpkg/info").glob("*.list"))
    libraries = {
        path for text in lists for path in re.findall(r"/usr/lib/.+\.so(?:\.[0-9.]+)?$", text, re.MULTILINE)
    }
    gone = {Path(path).name for path in libraries if not Path(path).exists()}
    packages = subprocess.run(["dpkg-query", "-W"], capture_output=True, text=True, check=True).stdout
    names = {line.partition("\t")[0].partition(":")[0] for line in packages.splitlines()}
    found = {
        "left out": sorted(gone),
        "needed": sorted(f"{file} needs {name}" for file, name in needed() if name in gone),
        "without licence": sorted(
            name for name in names if not Path("/usr/share/doc", name, "copyright").is_file()
        ),
        "RECORD": sorted(untrue()),
        "manuals": sum(not path.is_dir() for path in Path("/usr/share/man").rglob("*")),
    }
    sys.stdout.write(json.dumps(found))


def needed() -> Iterator[tuple[str, str]]:
    """Yield each library that an ELF file needs."""
    files = [str(path) for top in ("/usr", "/opt") for path in Path(top).rglob("*") if is_elf(path)]
    for start in range(0, len(files), 200):
        command = ["readelf", "--file-header", "--dynamic", "--wide", *files[start : start + 200]]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        file = files[start]
        for line in said.splitlines():
            if line.startswith("File: "):
                file = line.removeprefix("File: ")
            elif match := re.search(r"\(NEEDED\).*\[(.*)\]", line):
                yield file, match[1]


def is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def untrue() -> Iterator[str]:
    """Yield each file that is not as RECORD says."""
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            place = Path(str(file.locate()))
            if not place.is_file():
                yield f"{place} is missing"
            elif file.hash:
                digest = hashlib.new(file.hash.mode, place.read_bytes()).digest()
                if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                    yield f"{place} differs"


main()
