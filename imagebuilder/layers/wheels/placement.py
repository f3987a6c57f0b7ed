"""Where a wheel's files go in the image's venv, and the files that an installer adds.

What pip would do, minus what depends on the machine: no direct_url.json, and .pyc files are in other layers.
The rules are those of the Python packaging specifications ("Binary distribution format", "Recording installed
projects"), so that pip and uv inside the image can upgrade and remove what was put there.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.layers import archive
from imagebuilder.layers.archive import path_problem
from imagebuilder.layers.wheels.file import (
    Member,
    Unpacking,
    WheelFile,
    content,
    opened,
    packed_chunks,
    refuse,
)

INSTALLER = b"imagebuilder\n"
FILE = 0o664
EXECUTABLE = 0o775

_ENTRY_POINT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)(?:\s*\[.*\])?\s*")
# Names that setuptools once gave to wrappers; pip leaves these out where an entry point has the name.
_WRAPPER_ENDINGS = (".exe", "-script.py", ".pya")
_SHEBANG = b"#!python"
_SCRIPT = """\
#!{interpreter}
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({call}())
"""
# Files that the installer writes itself, whatever a wheel brings of that name.
_OURS = ("RECORD", "INSTALLER", "direct_url.json", "REQUESTED")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A file of the image: a member of a wheel as it is, or bytes made here.

    Attributes:
        wheel: the file name of the wheel that brings it.
        path: relative to the image's root.
        mode: of the file.
        source: the member, or the content.
        digest: hash algorithm and urlsafe base64 hash of the content, without `=`; empty for RECORD itself.

    """

    wheel: str
    path: str
    mode: int
    source: Member | bytes
    digest: tuple[str, str]

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.size


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The venv that wheels go into: its path in the image, and major.minor of its Python."""

    venv: str
    python: str

    @property
    def root(self) -> str:
        return self.venv.strip("/")

    @property
    def site_packages(self) -> str:
        return f"{self.root}/lib/python{self.python}/site-packages"

    @property
    def interpreter(self) -> str:
        return f"/{self.root}/bin/python"

    def is_reserved(self, path: str) -> bool:
        """Tell whether a file would break the venv: replace a part of it, or one of its folders."""
        names = ("pyvenv.cfg", "lib64", "bin/python", "bin/python3", f"bin/python{self.python}")
        own = {f"{self.root}/{name}" for name in names}
        folders = {*archive.parents(f"{self.site_packages}/x"), f"{self.root}/bin", f"{self.root}/include"}
        return path in own | folders or not own.isdisjoint(archive.parents(path))


def place(wheel: WheelFile, environment: Environment) -> tuple[Placed, ...]:
    """Lay out what installing a wheel writes, RECORD included, sorted by path.

    Raises:
        BuildError: two of its files would have one path, or one that the venv itself needs.

    """
    placed: dict[str, Placed] = {}
    with opened(wheel.file, wheel.path) as descriptor:
        for item in (*_members(wheel, environment, descriptor), *_scripts(wheel, environment)):
            if item.path in placed:
                raise refuse(wheel.file, item.path, "would be written twice")
            if environment.is_reserved(item.path):
                raise refuse(wheel.file, item.path, "would replace a part of the venv itself")
            placed[item.path] = item
    meta = f"{environment.site_packages}/{wheel.dist_info}"
    placed[f"{meta}/INSTALLER"] = _made(wheel, f"{meta}/INSTALLER", FILE, INSTALLER)
    record = f"{meta}/RECORD"
    rows = _record(placed, record, environment)
    placed[record] = Placed(wheel=wheel.file, path=record, mode=FILE, source=rows, digest=("", ""))
    return tuple(placed[path] for path in sorted(placed))


def script_names(wheel: WheelFile) -> frozenset[str]:
    """Name the commands that a wheel's entry points make."""
    return frozenset(name for name, _, _ in _entry_points(wheel))


def destination(wheel: WheelFile, name: str, environment: Environment) -> str:
    """Say where a member of a wheel goes in the image."""
    top, _, rest = name.partition("/")
    if top != wheel.dist_info.removesuffix(".dist-info") + ".data":
        return f"{environment.site_packages}/{name}"
    scheme, _, path = rest.partition("/")
    folders = {
        "purelib": environment.site_packages,
        "platlib": environment.site_packages,
        "headers": f"{environment.root}/include/site/python{environment.python}/{wheel.distribution}",
        "scripts": f"{environment.root}/bin",
        "data": environment.root,
    }
    if scheme not in folders or not path:
        raise refuse(wheel.file, name, f"is for an unknown place; known are {', '.join(sorted(folders))}")
    if scheme == "data" and path.startswith("lib64/"):
        # lib64 is a link to lib in a venv; a folder of that name in a layer would replace the link.
        path = path.replace("lib64/", "lib/", 1)
    return f"{folders[scheme]}/{path}"


def is_left_out(wheel: WheelFile, name: str) -> bool:
    """Tell whether a member is replaced by what the installer writes itself."""
    folder, _, base = name.rpartition("/")
    if folder == wheel.dist_info:
        return base in _OURS
    if folder == wheel.dist_info.removesuffix(".dist-info") + ".data/scripts":
        for ending in _WRAPPER_ENDINGS:
            base = base[: -len(ending)] if base.lower().endswith(ending) else base
        return base in script_names(wheel)
    return False


def _members(wheel: WheelFile, environment: Environment, descriptor: int) -> Iterator[Placed]:
    scripts = wheel.dist_info.removesuffix(".dist-info") + ".data/scripts/"
    for member in wheel.members:
        if is_left_out(wheel, member.name):
            continue
        path = destination(wheel, member.name, environment)
        _check_metadata_folder(wheel, member.name, path, environment)
        is_script = member.name.startswith(scripts)
        if is_script and _begins_with_shebang(descriptor, member):
            _, newline, rest = content(descriptor, member).partition(b"\n")
            rewritten = b"#!" + environment.interpreter.encode() + (newline or b"\n") + rest
            yield _made(wheel, path, EXECUTABLE, rewritten)
            continue
        yield Placed(
            wheel=wheel.file,
            path=path,
            mode=EXECUTABLE if is_script or member.executable else FILE,
            source=member,
            digest=wheel.hashes.get(member.name) or _digest_of(descriptor, member),
        )


def _check_metadata_folder(wheel: WheelFile, name: str, path: str, environment: Environment) -> None:
    """Refuse what `.data` would put into a metadata folder: it may be another package's."""
    folder = path.removeprefix(f"{environment.site_packages}/").partition("/")[0]
    if folder.lower().endswith(".dist-info") and not name.startswith(f"{wheel.dist_info}/"):
        raise refuse(wheel.file, name, f"would be written into `{printable(folder)}`")


def _begins_with_shebang(descriptor: int, member: Member) -> bool:
    head = b""
    for chunk in packed_chunks(descriptor, member):
        for piece in Unpacking(member).feed(chunk):
            head += piece
            break
        break
    return head.startswith(_SHEBANG)


def sha256(item: Placed) -> str:
    """Hash what a file holds, whatever its wheel's RECORD says of it."""
    if isinstance(item.source, bytes):
        return item.digest[1] if item.digest[0] == "sha256" else encoded(hashlib.sha256(item.source).digest())
    with opened(item.wheel, item.source.file) as descriptor:
        return _digest_of(descriptor, item.source)[1]


def _digest_of(descriptor: int, member: Member) -> tuple[str, str]:
    """Hash a member that RECORD does not list, or lists without a strong hash."""
    digest, unpacking = hashlib.sha256(), Unpacking(member)
    for chunk in packed_chunks(descriptor, member):
        for piece in unpacking.feed(chunk):
            digest.update(piece)
    unpacking.finish()
    return "sha256", encoded(digest.digest())


def encoded(digest: bytes) -> str:
    """Write a hash as RECORD does."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _scripts(wheel: WheelFile, environment: Environment) -> Iterator[Placed]:
    for name, module, call in _entry_points(wheel):
        if "/" in name or path_problem(name):
            raise refuse(wheel.file, name, "is not a name for a command (entry_points.txt)")
        text = _SCRIPT.format(
            interpreter=environment.interpreter, module=module, name=call.partition(".")[0], call=call
        )
        yield _made(wheel, f"{environment.root}/bin/{name}", EXECUTABLE, text.encode())


def _entry_points(wheel: WheelFile) -> tuple[tuple[str, str, str], ...]:
    """Read name, module and callable of all commands; a name in both sections counts once."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    where = f"{wheel.dist_info}/entry_points.txt"
    try:
        parser.read_string(wheel.entry_points)
    except configparser.Error as error:
        raise refuse(wheel.file, where, f"cannot be read: {printable(error.message)}") from None
    found = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser[section].items() if parser.has_section(section) else ():
            match = _ENTRY_POINT.fullmatch(value)
            if match is None:
                said = printable(f"{name} = {value}")
                raise refuse(wheel.file, where, f"has a command without a function: {said}")
            found[name] = (name, match[1], match[2])
    return tuple(found[name] for name in sorted(found))


def _made(wheel: WheelFile, path: str, mode: int, data: bytes) -> Placed:
    digest = ("sha256", encoded(hashlib.sha256(data).digest()))
    return Placed(wheel=wheel.file, path=path, mode=mode, source=data, digest=digest)


def _record(placed: dict[str, Placed], record: str, environment: Environment) -> bytes:
    rows = {_relative(record, environment): ("", "")}
    for item in placed.values():
        rows[_relative(item.path, environment)] = ("=".join(item.digest), str(item.size))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((path, *rows[path]) for path in sorted(rows))
    return text.getvalue().encode()


def _relative(path: str, environment: Environment) -> str:
    # Both are relative to the image's root, so the current folder plays no part.
    site = environment.site_packages + "/"
    return path.removeprefix(site) if path.startswith(site) else os.path.relpath("/" + path, "/" + site)
