"""The user's own project as a layer: the same folder gives the same bytes on every machine.

Whatever differs between two checkouts of one commit is ignored: owners, times, hard links, the order of
directory entries, and every mode bit except the owner's execute bit. Files that an image cannot hold in the
same way everywhere, such as sockets, are refused.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.core.progress import Advance, human
from imagebuilder.core.streams import IterReader
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError, InputError, Problem
from imagebuilder.layers import archive, dockerignore, stargz
from imagebuilder.layers.dockerignore import Matches, Rules
from imagebuilder.layers.files import folder_mode
from imagebuilder.plan import PackageLayer, ProjectLayer
from imagebuilder.store import LayerRecord, Store

MOST_FILES = 100_000
MOST_BYTES = 1 << 30
_MOST_DEPTH = 100
_MOST_PROBLEMS = 20
_MOST_RULES_BYTES = 1 << 18
_PIECE = 1 << 20
# Always excluded: Git's own folder, or the file that replaces it in a worktree.
_NEVER = ".git"
_FOLDER, _FILE, _PROGRAM = 0o755, 0o644, 0o755
_MOST_UID = 0o7777777
_LEAVE_OUT = f"name it in {dockerignore.NAME}, or take it out of the folder"


@dataclass(frozen=True, kw_only=True)
class ProjectFile:
    """One path of a project.

    Attributes:
        path: relative to the folder.
        kind: `dir`, `file` or `link`.
        mode: its mode in the image.
        size: a file's size in bytes.
        target: a link's target.
        sha256: hash of a file's content.
        blobs: Git's two object ids for the content of a file or a link: by SHA-1 and by SHA-256.

    """

    path: str
    kind: str
    mode: int
    size: int = 0
    target: str = ""
    sha256: str = ""
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All files of one folder that are copied, in the layer's order."""

    files: tuple[ProjectFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def checksum(self) -> str:
        """The hex sha256 over all names, kinds, modes and contents."""
        digest = hashlib.sha256()
        for file in self.files:
            row = (file.kind, f"{file.mode:o}", file.sha256, file.path, file.target)
            digest.update("".join(f"{word}\0" for word in row).encode())
        return digest.hexdigest()


def find(above: Path, source: str, where: str) -> Path:
    """Find a folder of the project.

    Args:
        above: the recipe's folder.
        source: the path that the recipe gives.
        where: the line of the recipe that gives it, for messages.

    Raises:
        InputError: it does not exist, is not a folder, is behind a link, or contains the home folder.

    """
    upwards = source.split("/", maxsplit=1)[0] == ".."
    place = Path(os.path.normpath(above / "..")) if upwards else above
    for part in ("", *(part for part in source.split("/") if part not in {".", ".."})):
        place = place / part
        try:
            mode = place.lstat().st_mode if part else place.stat().st_mode
        except OSError as error:
            hint = "name a folder relative to the recipe's"
            raise InputError(f"`{place}` cannot be read: {error.strerror}", where=where, hint=hint) from None
        if stat.S_ISLNK(mode):
            raise InputError(f"`{place}` is a link", where=where, hint="name the folder that it leads to")
        if not stat.S_ISDIR(mode):
            hint = "name the folder that it is in"
            raise InputError(f"`{place}` is not a folder", where=where, hint=hint)
    real, home = os.path.realpath(place).rstrip("/"), os.path.realpath(Path("~").expanduser())
    if f"{home}/".startswith(f"{real}/"):
        raise InputError(
            f"`{place}` contains your home folder",
            where=where,
            hint="put the project into a folder of its own",
        )
    return place


def read(folder: Path) -> Listing:
    """List a folder, and hash every file that is copied.

    Args:
        folder: the project's folder; not a link.

    Raises:
        InputError: lists every file that cannot be copied, or says that there are too many.

    """
    walk = _Walk(folder)
    files: list[ProjectFile] = []
    for entry, pieces in walk.entries():
        hashes = _Hashes(entry)
        for piece in pieces:
            hashes.update(piece)
        files.append(hashes.done())
    walk.refuse()
    if not files:
        raise InputError("has no file to copy", where=str(folder), hint=f"look at its {dockerignore.NAME}")
    return Listing(files=tuple(files))


def checksum_of_tests(folder: Path) -> str:
    """Return the checksum of a folder of pytest files, without what Python and pytest leave there.

    Raises:
        InputError: it is not a folder, has no files, or has some that cannot be hashed.

    """
    if folder.is_symlink() or not folder.is_dir():
        raise InputError("is not a folder", where=str(folder), hint="name the folder with your test_*.py")
    left = {"__pycache__", ".pytest_cache"}
    files = (file for file in read(folder).files if left.isdisjoint(file.path.split("/")))
    return Listing(files=tuple(files)).checksum


def build_project_layer(layer: ProjectLayer, folder: Path, store: Store, advance: Advance) -> LayerRecord:
    """Make the layer of one of the project's folders.

    Args:
        layer: the planned layer.
        folder: the folder that it was planned from.
        store: gets the blob.
        advance: called with the number of bytes done.

    Raises:
        BuildError: the folder has changed since it was planned.
        InputError: the folder has files that cannot be copied.
        StoreError: the blob cannot be written.

    """
    if layer.user.uid > _MOST_UID:
        raise BuildError(f"the user id {layer.user.uid} does not fit into a tar header", where=layer.title)
    walk, files = _Walk(folder), list[ProjectFile]()
    record = stargz.compress_tar(cast("BinaryIO", IterReader(_tar(layer, walk, files))), store, advance)
    _require_planned(layer, walk, files)
    return record


def write_folder(layer: ProjectLayer | PackageLayer, folder: Path, output: Path) -> None:
    """Copy the files of a layer to a new folder, for an engine that makes the layer itself.

    Raises:
        BuildError: the folder has changed since it was planned.
        InputError: the folder has files that cannot be copied.

    """
    walk, files = _Walk(folder), list[ProjectFile]()
    output.mkdir()
    for entry, pieces in walk.entries():
        place, hashes = output / entry.path, _Hashes(entry)
        if entry.kind == "dir":
            place.mkdir()
        elif entry.kind == "link":
            place.symlink_to(entry.target)
        else:
            with place.open("xb") as file:
                for piece in pieces:
                    hashes.update(piece)
                    file.write(piece)
            place.chmod(entry.mode)
        files.append(hashes.done())
    _require_planned(layer, walk, files)


def _require_planned(layer: ProjectLayer | PackageLayer, walk: _Walk, files: list[ProjectFile]) -> None:
    walk.refuse()
    if Listing(files=tuple(files)).checksum != layer.checksum:
        raise BuildError("files changed while the image was built", where=layer.title, hint="build it again")


def _tar(layer: ProjectLayer, walk: _Walk, files: list[ProjectFile]) -> Iterator[bytes]:
    """Yield a layer's tar, and add the files in it to `files`."""
    target, uid = layer.target.strip("/"), layer.user.uid
    for parent in archive.parents(target):
        # The system's layers already have /home and the user's home folder, with their own modes.
        if f"/{parent}" not in {"/home", layer.user.home}:
            yield archive.directory(parent, folder_mode(parent))
    yield archive.directory(target, _FOLDER, uid)
    for entry, pieces in walk.entries():
        path, hashes = f"{target}/{entry.path}", _Hashes(entry)
        if entry.kind == "dir":
            yield archive.directory(path, entry.mode, uid)
        elif entry.kind == "link":
            yield archive.symlink(path, entry.target, uid)
        else:
            yield archive.regular(path, entry.mode, entry.size, uid)
            for piece in pieces:
                hashes.update(piece)
                yield piece
            yield archive.padding(entry.size)
        files.append(hashes.done())
    yield archive.TAR_END


class _Hashes:
    """Hashes the content of a file, or the target of a link."""

    def __init__(self, file: ProjectFile) -> None:
        self._file = file
        target = os.fsencode(file.target)
        start = b"blob %d\0" % (len(target) if file.kind == "link" else file.size)
        self._content = hashlib.sha256(target)
        # Git's object ids, for comparing files with a commit. Security does not depend on them.
        self._blobs = (hashlib.sha1(start + target, usedforsecurity=False), hashlib.sha256(start + target))

    def update(self, piece: bytes) -> None:
        for digest in (self._content, *self._blobs):
            digest.update(piece)

    def done(self) -> ProjectFile:
        """Return the file with its hashes; a folder has none."""
        if self._file.kind == "dir":
            return self._file
        blobs = tuple(digest.hexdigest() for digest in self._blobs)
        return replace(self._file, sha256=self._content.hexdigest(), blobs=blobs)


class _Walk:
    """Walks a folder in the byte order of its names, and collects problems with files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[Problem] = []
        self._files: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._rules = Rules()

    def entries(self) -> Iterator[tuple[ProjectFile, Iterator[bytes]]]:
        """Yield each path with its content, which must be read before the next path is requested."""
        place = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._rules = _rules(place, self._folder)
            yield from self._within(place, (), ())
        finally:
            os.close(place)

    def refuse(self) -> None:
        """Raise the collected problems, if there are any.

        Raises:
            InputError: lists every file that cannot be copied.

        """
        if self._problems:
            raise InputError.of(self._problems)

    def _within(
        self, place: int, path: tuple[str, ...], above: Matches
    ) -> Iterator[tuple[ProjectFile, Iterator[bytes]]]:
        for name in sorted(os.listdir(place), key=os.fsencode):
            # Decode the bytes on the disk as UTF-8: Python's own decoding depends on the locale.
            here = (*path, os.fsencode(name).decode("utf-8", "surrogateescape"))
            if here[-1] == _NEVER:
                continue
            matches = self._rules.matches(here, above)
            out = self._rules.excludes(matches)
            status = os.stat(name, dir_fd=place, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                if not out and (entry := self._leaf(place, name, here, status)):
                    yield entry, self._content(place, name, entry, status)
            elif not out or self._rules.keeps_some:
                yield from self._subfolder(place, name, here, matches, out=out)

    def _subfolder(
        self, place: int, name: str, path: tuple[str, ...], matches: Matches, *, out: bool
    ) -> Iterator[tuple[ProjectFile, Iterator[bytes]]]:
        """Walk a subfolder. An excluded one is copied only if a rule keeps something inside it."""
        self._count(path, 0)
        if not self._is_fit(path):
            return
        if len(path) > _MOST_DEPTH:
            self._note(path, f"is more than {_MOST_DEPTH} folders deep")
            return
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        except OSError as error:
            self._note(path, f"cannot be read: {error.strerror}")
            return
        try:
            below = self._within(inner, path, matches)
            first = next(below, None) if out else None
            if out and first is None:
                return
            yield ProjectFile(path="/".join(path), kind="dir", mode=_FOLDER), iter(())
            if first is not None:
                yield first
            yield from below
        finally:
            os.close(inner)

    def _leaf(
        self, place: int, name: str, path: tuple[str, ...], status: os.stat_result
    ) -> ProjectFile | None:
        """Describe a file or a link. If it cannot be copied, note the problem and return None."""
        self._count(path, status.st_size)
        if not self._is_fit(path):
            return None
        joined = "/".join(path)
        if stat.S_ISREG(status.st_mode):
            mode = _PROGRAM if status.st_mode & stat.S_IXUSR else _FILE
            return ProjectFile(path=joined, kind="file", mode=mode, size=status.st_size)
        if not stat.S_ISLNK(status.st_mode):
            self._note(path, f"is {_kind(status.st_mode)}, which an image cannot hold")
            return None
        target = os.fsencode(os.readlink(name, dir_fd=place)).decode("utf-8", "surrogateescape")
        if problem := self._link_problem(joined, target):
            self._note(path, problem)
            return None
        return ProjectFile(path=joined, kind="link", mode=0o777, target=target)

    def _link_problem(self, path: str, target: str) -> str:
        """Say why a link cannot be copied; "" if it can, even if its target does not exist."""
        if not target.isprintable() or "\\" in target:
            return "is a link to a path with control characters, a backslash, or another encoding than UTF-8"
        led = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        # Its target may lead through other links, which only the disk can resolve.
        top = os.path.realpath(self._folder)
        real = os.path.realpath(f"{top}/{path}")
        if target.startswith("/") or led.split("/")[0] == ".." or not f"{real}/".startswith(f"{top}/"):
            return f"is a link that leaves the folder: {printable(target)}"
        return ""

    def _content(self, place: int, name: str, file: ProjectFile, seen: os.stat_result) -> Iterator[bytes]:
        """Yield the content of a file; note a problem if the file has changed since it was listed."""
        if file.kind != "file":
            return
        path = tuple(file.path.split("/"))
        try:
            # With O_NONBLOCK, because a pipe that has replaced the file would block.
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
            with os.fdopen(opened, "rb", buffering=0) as stream:
                before = os.fstat(opened)
                left = file.size
                while left and (piece := stream.read(min(left, _PIECE))):
                    left -= len(piece)
                    yield piece
                after = os.fstat(opened)
                if left or not _stamp(seen) == _stamp(before) == _stamp(after):
                    self._note(path, "changed while it was read", "build again once nothing writes to it")
        except OSError as error:
            self._note(path, f"cannot be read: {error.strerror}")

    def _is_fit(self, path: tuple[str, ...]) -> bool:
        if problem := archive.path_problem("/".join(path)):
            self._note(path, problem, f"rename it, or {_LEAVE_OUT}")
        return not problem

    def _note(self, path: tuple[str, ...], message: str, hint: str = _LEAVE_OUT) -> None:
        shown = printable("/".join(path))
        self._problems.append(Problem(message=message, where=f"{self._folder}/{shown}", hint=hint))
        if len(self._problems) >= _MOST_PROBLEMS:
            self.refuse()

    def _count(self, path: tuple[str, ...], size: int) -> None:
        self._files[path[0]] += 1
        self._bytes[path[0]] += size
        if self._files.total() > MOST_FILES:
            (name, count), *_ = self._files.most_common(1)
            raise self._too_much(f"more than {MOST_FILES} files", name, f"{count} of them")
        if self._bytes.total() > MOST_BYTES:
            (name, count), *_ = self._bytes.most_common(1)
            raise self._too_much(f"more than {human(MOST_BYTES)}", name, human(count))

    def _too_much(self, what: str, name: str, share: str) -> InputError:
        return InputError(
            f"holds {what}: `{printable(name)}` alone has {share}",
            where=str(self._folder),
            hint=f"name in {dockerignore.NAME} everything but code; mount data when the image runs",
        )


def _rules(place: int, folder: Path) -> Rules:
    """Read the rules of the folder's .dockerignore; without the file there are none."""
    where = f"{folder}/{dockerignore.NAME}"
    try:
        opened = os.open(dockerignore.NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        with os.fdopen(opened, "rb") as file:
            data = file.read(_MOST_RULES_BYTES + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        return Rules()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"cannot be read: {reason}", where=where, hint="make it a plain text file") from None
    if len(data) > _MOST_RULES_BYTES:
        raise InputError("is far too large", where=where, hint="name folders instead of files")
    return dockerignore.parse(text, where)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a named pipe"))
    return next((text for asked, text in kinds if asked(mode)), "a device")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns
