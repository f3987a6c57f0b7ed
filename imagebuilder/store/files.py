"""Files of the store: written completely or not at all, hard-linked if possible, and locked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path
from typing import Any

from imagebuilder.errors import StoreError

log = logging.getLogger(__name__)

_HINTS = {
    errno.ENOSPC: "free some space, or run: imagebuilder cache prune --keep 20GB",
    errno.EDQUOT: "your quota is used up; run: imagebuilder cache prune --keep 20GB",
    errno.EACCES: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EPERM: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EROFS: "the file system is read-only; set IMAGEBUILDER_STORE to another folder",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
}


class DamagedDownloadError(StoreError):
    """The content of a download no longer matches its name; a build removes it and downloads it again.

    `name` is its name for people; `sha256`, in hex, is its name in the store.
    """

    def __init__(self, name: str, sha256: str, actual: str) -> None:
        super().__init__(
            f"is not the locked file: its sha256 is {actual}, not {sha256}",
            where=name,
            hint="run: imagebuilder cache verify --fix",
        )
        self.name, self.sha256 = name, sha256


@contextlib.contextmanager
def explained(path: Path, done: str = "written") -> Iterator[None]:
    """Turn an error of the file system into a StoreError that says what to do.

    Args:
        path: the file or folder.
        done: the failed operation as a participle, such as `written`.

    Raises:
        StoreError: with the path, and a hint for full disks, quotas and permissions.

    """
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot be {done}: {os.strerror(error.errno or 0)}",
            where=str(path),
            hint=_HINTS.get(error.errno or 0, "check the disk; IMAGEBUILDER_STORE names another folder"),
        ) from error


def check_bytes(path: Path, sha256: str, name: str) -> None:
    """Check the hash of a download again, because the disk may have corrupted it.

    Args:
        path: the file.
        sha256: the expected hash, in hex.
        name: its name in messages.

    Raises:
        DamagedDownloadError: its content has changed.
        StoreError: it cannot be read.

    """
    with explained(path, "read"), path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise DamagedDownloadError(name, sha256, actual)


def link_or_copy(source: Path, target: Path) -> None:
    """Put a file in a second place: as a hard link, or as a copy if links are not possible.

    Raises:
        OSError: neither can be written.

    """
    try:
        target.hardlink_to(source)
    except OSError as error:
        # Another file system, no support for hard links, too many links, or links that the kernel forbids.
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP}:
            raise
        shutil.copyfile(source, target)


def remove_tree(path: Path) -> None:
    """Remove a file or folder, even without write permission; log what cannot be removed."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


def is_read_only(path: Path) -> bool:
    """Return whether a file system is read-only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def folder(path: Path) -> Path:
    """Return a folder, and make it if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_file(path: Path, size: int | None) -> bool:
    """Return whether a file exists and has this size in bytes; None accepts any size."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (size is None or status.st_size == size)


def holds(path: Path, data: bytes) -> bool:
    """Return whether a file has this content."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def touch(path: Path) -> bool:
    """Set the time of use, by which `cache prune` chooses; does nothing in a read-only store."""
    with contextlib.suppress(OSError):
        os.utime(path)
    return True


@contextlib.contextmanager
def flock(path: Path, kind: int) -> Iterator[Any]:
    """Hold a lock between processes and threads; the kernel releases it when its holder dies."""
    with explained(path):
        folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with explained(path):
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_part(part: Path) -> Iterator[BufferedRandom]:
    """Open a partial download, or a new file, to read it and to append to it.

    Raises:
        StoreError: it cannot be opened, or is a symlink.

    """
    with explained(part):
        # A symlink here can only be an attack: it would redirect our write to another file.
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        file = os.fdopen(descriptor, "r+b")
    with file:
        yield file
