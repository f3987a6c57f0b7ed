"""Where a wheel's files go in the image's venv, and the files that an installer adds.

This does what pip would do, without what depends on the machine: there is no direct_url.json, and .pyc files
are in other layers. The rules are those of the Python packaging specifications ("Binary distribution format",
"Recording installed projects"), so that pip and uv in the image can upgrade and remove these packages.
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
from imagebuilder.layers.wheels.file import WheelFile
from imagebuilder.layers.wheels.members import Member, Unpacking, content, opened, packed_chunks, refuse
from imagebuilder.plan.slim import Slim

INSTALLER = b"imagebuilder\n"
FILE = 0o664
EXECUTABLE = 0o775

_ENTRY_POINT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)(?:\s*\[.*\])?\s*")
# setuptools once gave these endings to wrappers; pip leaves a wrapper out if an entry point has its name.
_WRAPPER_ENDINGS = (".exe", "-script.py", ".pya")
_SHA256_LENGTH = 43  # in base64 without padding
_SHEBANG = b"#!python"
_SCRIPT = """\
#!{interpreter}
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({call}())
"""
# Files that the installer writes; a wheel's own files of these names are left out.
_OURS = ("RECORD", "INSTALLER", "direct_url.json", "REQUESTED")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A file of the image: an unchanged member of a wheel, or bytes made here.

    Attributes:
        wheel: the file name of the wheel that it comes from.
        path: relative to the image's root.
        mode: of the file.
        source: the member, or the content.
        digest: hash algorithm and urlsafe base64 hash of the content, without `=`; both "" for RECORD itself.

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
class VenvLayout:
    """The venv that wheels are installed into: its path in the image, and its Python's major.minor."""

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
        """Return whether a file at this path would break the venv: replace one of its files or folders."""
        names = ("pyvenv.cfg", "lib64", "bin/python", "bin/python3", f"bin/python{self.python}")
        own = {f"{self.root}/{name}" for name in names}
        folders = {*archive.parents(f"{self.site_packages}/x"), f"{self.root}/bin", f"{self.root}/include"}
        return path in own | folders or not own.isdisjoint(archive.parents(path))


def place(wheel: WheelFile, environment: VenvLayout, slim: Slim | None = None) -> tuple[Placed, ...]:
    """Return the files that installing a wheel writes, RECORD included, sorted by path.

    Args:
        wheel: the wheel.
        environment: the venv.
        slim: members to leave out; RECORD does not list them. Metadata always stays.

    Raises:
        BuildError: two of its files would have the same path, or one would replace a part of the venv.

    """
    placed: dict[str, Placed] = {}
    with opened(wheel.file, wheel.path) as descriptor:
        for item in (*_members(wheel, environment, descriptor, slim), *_scripts(wheel, environment)):
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
    """Return the names of the commands that a wheel's entry points define."""
    return frozenset(name for name, _, _ in _entry_points(wheel))


def destination(wheel: WheelFile, name: str, environment: VenvLayout) -> str:
    """Return the path in the image of a wheel's member."""
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
        raise refuse(wheel.file, name, f"is for an unknown place; known places: {', '.join(sorted(folders))}")
    if scheme == "data" and path.startswith("lib64/"):
        # In a venv, lib64 is a link to lib. A folder of that name in a layer would replace the link.
        path = path.replace("lib64/", "lib/", 1)
    return f"{folders[scheme]}/{path}"


def is_left_out(wheel: WheelFile, name: str) -> bool:
    """Return whether the installer writes its own file in place of a member."""
    folder, _, base = name.rpartition("/")
    if folder == wheel.dist_info:
        return base in _OURS
    if folder == wheel.dist_info.removesuffix(".dist-info") + ".data/scripts":
        for ending in _WRAPPER_ENDINGS:
            base = base[: -len(ending)] if base.lower().endswith(ending) else base
        return base in script_names(wheel)
    return False


def _members(
    wheel: WheelFile, environment: VenvLayout, descriptor: int, slim: Slim | None
) -> Iterator[Placed]:
    scripts = wheel.dist_info.removesuffix(".dist-info") + ".data/scripts/"
    for member in wheel.members:
        if is_left_out(wheel, member.name):
            continue
        if slim and slim.leaves_out(member.name) and not member.name.startswith(f"{wheel.dist_info}/"):
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


def _check_metadata_folder(wheel: WheelFile, name: str, path: str, environment: VenvLayout) -> None:
    """Refuse a file that `.data` would put into a metadata folder: the folder may be another package's."""
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
    """Return the hash of a file's content, computed here and not taken from the wheel's RECORD."""
    if isinstance(item.source, bytes):
        return item.digest[1] if item.digest[0] == "sha256" else encoded(hashlib.sha256(item.source).digest())
    with opened(item.wheel, item.source.file) as descriptor:
        return _digest_of(descriptor, item.source)[1]


def hex_sha256(item: Placed) -> str:
    """Return a file's SHA-256 in hex: as RECORD says, which the splicer checks, or computed here."""
    said = item.digest[1] if item.digest[0] == "sha256" else sha256(item)
    # The splicer refuses a hash of another length.
    return base64.urlsafe_b64decode(f"{said}=").hex() if len(said) == _SHA256_LENGTH else ""


def _digest_of(descriptor: int, member: Member) -> tuple[str, str]:
    """Compute the hash of a member, which RECORD may leave out or give as a weak one."""
    digest, unpacking = hashlib.sha256(), Unpacking(member)
    for chunk in packed_chunks(descriptor, member):
        for piece in unpacking.feed(chunk):
            digest.update(piece)
    unpacking.finish()
    return "sha256", encoded(digest.digest())


def encoded(digest: bytes) -> str:
    """Return a hash in the form that RECORD uses."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _scripts(wheel: WheelFile, environment: VenvLayout) -> Iterator[Placed]:
    for name, module, call in _entry_points(wheel):
        if "/" in name or path_problem(name):
            raise refuse(wheel.file, name, "is not a name for a command (entry_points.txt)")
        text = _SCRIPT.format(
            interpreter=environment.interpreter, module=module, name=call.partition(".")[0], call=call
        )
        yield _made(wheel, f"{environment.root}/bin/{name}", EXECUTABLE, text.encode())


def _entry_points(wheel: WheelFile) -> tuple[tuple[str, str, str], ...]:
    """Return name, module and callable of each command; a name in both sections is returned once."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    path = f"{wheel.dist_info}/entry_points.txt"
    try:
        parser.read_string(wheel.entry_points)
    except configparser.Error as error:
        raise refuse(wheel.file, path, f"cannot be read: {printable(error.message)}") from None
    commands = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser[section].items() if parser.has_section(section) else ():
            match = _ENTRY_POINT.fullmatch(value)
            if match is None:
                said = printable(f"{name} = {value}")
                raise refuse(wheel.file, path, f"has a command without a function: {said}")
            commands[name] = (name, match[1], match[2])
    return tuple(commands[name] for name in sorted(commands))


def _made(wheel: WheelFile, path: str, mode: int, data: bytes) -> Placed:
    digest = ("sha256", encoded(hashlib.sha256(data).digest()))
    return Placed(wheel=wheel.file, path=path, mode=mode, source=data, digest=digest)


def _record(placed: dict[str, Placed], record: str, environment: VenvLayout) -> bytes:
    rows = {_relative(record, environment): ("", "")}
    for item in placed.values():
        rows[_relative(item.path, environment)] = ("=".join(item.digest), str(item.size))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((path, *rows[path]) for path in sorted(rows))
    return text.getvalue().encode()


def _relative(path: str, environment: VenvLayout) -> str:
    # Both paths get a leading slash, so that the result does not depend on the current folder.
    site = environment.site_packages + "/"
    return path.removeprefix(site) if path.startswith(site) else os.path.relpath("/" + path, "/" + site)
