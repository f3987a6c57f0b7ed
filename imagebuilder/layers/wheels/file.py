"""A wheel: a zip file with metadata that says which package it is, in which version, with which files.

`members` reads the zip file. Here file name, metadata folder and METADATA must name the same package, and
RECORD gives each file's hash. Format: the binary distribution format of the Python packaging specifications.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from types import MappingProxyType

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.layers.wheels.members import (
    HINT,
    MEMORY_LIMIT,
    Member,
    content,
    opened,
    read_members,
    refuse,
)

# WHEEL and entry_points.txt have one line for each fact; a parser takes many times their size.
TEXT_LIMIT = 1 << 20
_HASHES = frozenset({"sha256", "sha384", "sha512"})
_HASH = re.compile(r"([a-z0-9]+)=([A-Za-z0-9_-]+)=*")


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A wheel whose directory and metadata were read and checked; its other members are still packed.

    Attributes:
        file: the wheel's file name.
        path: its path on this host.
        distribution: the name at the beginning of its metadata folder's name.
        dist_info: name of the metadata folder, such as `numpy-2.3.1.dist-info`.
        members: all files, in the order of the zip directory.
        hashes: algorithm and hash (`sha256`, `dwVz...`) of each path, from RECORD; weak ones are left out.
        entry_points: the text of entry_points.txt, "" if the wheel has none.

    """

    file: str
    path: Path
    distribution: str
    dist_info: str
    members: tuple[Member, ...]
    hashes: Mapping[str, tuple[str, str]]
    entry_points: str


def read_wheel(file: str, path: Path) -> WheelFile:
    """Read a wheel's directory and metadata.

    Args:
        file: the wheel's file name, which contains its distribution and version.
        path: the file with its bytes; the name of that file does not matter.

    Raises:
        BuildError: the wheel cannot be unpacked safely; names the wheel and the member.

    """
    with opened(file, path) as descriptor:
        members = read_members(file, path, descriptor)
        by_name = {member.name: member for member in members}
        dist_info = _dist_info(file, by_name)

        def text(name: str, limit: int = MEMORY_LIMIT) -> str:
            member = by_name.get(f"{dist_info}/{name}")
            if member is None:
                raise refuse(file, f"{dist_info}/{name}", "is missing")
            return _text(descriptor, member, limit)

        _check_version(file, f"{dist_info}/WHEEL", text("WHEEL", TEXT_LIMIT))
        _check_identity(file, dist_info, text("METADATA"))
        entry_points = f"{dist_info}/entry_points.txt" in by_name
        return WheelFile(
            file=file,
            path=path,
            distribution=dist_info.partition("-")[0],
            dist_info=dist_info,
            members=members,
            hashes=_hashes(by_name, f"{dist_info}/RECORD", text("RECORD")),
            entry_points=text("entry_points.txt", TEXT_LIMIT) if entry_points else "",
        )


def _dist_info(file: str, members: Mapping[str, Member]) -> str:
    # importlib.metadata accepts the suffix in upper and lower case.
    tops = {name.partition("/")[0] for name in members if "/" in name}
    folders = sorted(top for top in tops if top.lower().endswith(".dist-info"))
    wanted = canonicalize_name(file.partition("-")[0])
    if not folders:
        raise BuildError("has no .dist-info folder", where=file, hint=HINT)
    if len(folders) > 1:
        raise BuildError(
            f"has several .dist-info folders: {', '.join(map(printable, folders))}", where=file, hint=HINT
        )
    if canonicalize_name(folders[0].partition("-")[0]) != wanted:
        raise refuse(file, folders[0], f"belongs to another distribution, not to {wanted}")
    return folders[0]


def _check_identity(file: str, dist_info: str, metadata: str) -> None:
    """Check that file name, metadata folder and METADATA name the same package and version."""
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise BuildError(
            f"does not have the file name of a wheel: {printable(str(error))}", where=file, hint=HINT
        ) from None
    headers = HeaderParser().parsestr(metadata)
    said = [headers.get_all(key, []) for key in ("Name", "Version")]
    if any(len(values) != 1 for values in said):
        raise refuse(file, f"{dist_info}/METADATA", "needs exactly one Name and one Version")
    folder = dist_info[: -len(".dist-info")].partition("-")
    for place, (own_name, own_version) in (
        (f"{dist_info}/METADATA", (str(said[0][0]), str(said[1][0]))),
        (dist_info, (folder[0], folder[2])),
    ):
        try:
            same = (canonicalize_name(own_name), Version(own_version)) == (name, version)
        except InvalidVersion:
            same = False
        if not same:
            own = printable(f"{own_name} {own_version}")
            raise refuse(file, place, f"names {own}, but the file name says {name} {version}")


def _text(descriptor: int, member: Member, limit: int) -> str:
    try:
        return content(descriptor, member, limit).decode("utf-8")
    except UnicodeDecodeError:
        raise member.refuse("is not UTF-8") from None


def _check_version(file: str, name: str, text: str) -> None:
    """Refuse unknown formats. Root-Is-Purelib may be true or false: a venv has one folder for both kinds."""
    headers = HeaderParser().parsestr(text)
    version = str(headers.get("Wheel-Version", "")).strip()
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", version):
        raise refuse(file, name, "has no valid Wheel-Version")
    if int(version.partition(".")[0]) > 1:
        raise BuildError(
            f"has wheel format {version}; this version knows 1.x", where=file, hint="upgrade imagebuilder"
        )
    if str(headers.get("Root-Is-Purelib", "")).strip().lower() not in {"true", "false"}:
        raise refuse(file, name, "has no valid Root-Is-Purelib")


def _hashes(members: Mapping[str, Member], name: str, text: str) -> Mapping[str, tuple[str, str]]:
    hashes: dict[str, tuple[str, str]] = {}
    try:
        for row in csv.reader(io.StringIO(text)):
            member = members.get(row[0]) if row else None
            match = _HASH.fullmatch(row[1]) if len(row) > 1 else None
            if member is None or match is None or match[1] not in _HASHES:
                continue
            if len(row) > 2 and row[2] and row[2] != str(member.size):
                raise member.refuse(f"has {member.size} bytes, but {printable(row[2])} according to RECORD")
            if hashes.setdefault(member.name, (match[1], match[2])) != (match[1], match[2]):
                raise member.refuse("has two different hashes in RECORD")
    except csv.Error as error:
        raise members[name].refuse(f"is not CSV: {error}") from None
    return MappingProxyType(hashes)
