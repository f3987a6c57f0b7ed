"""Files as the store keeps them: written whole or not at all, linked where that can be, locked."""

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
from pathlib import Path
from typing import Any

from imagebuilder.errors import StoreError

log = logging.getLogger(__name__)

_HINTS = {
    errno.ENOSPC: "free some space, or run: imagebuilder cache prune",
    errno.EDQUOT: "your quota is used up; run: imagebuilder cache prune",
    errno.EACCES: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EPERM: "give yourself write permission, or set IMAGEBUILDER_STORE to a folder of your own",
    errno.EROFS: "the file system is read-only; set IMAGEBUILDER_STORE to another folder",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
}


class DamagedDownloadError(StoreError):
    """A download that is no longer what its name says; a build removes it, and fetches it again.

    `name` is what people call it; `sha256` what it was, in hex: its name in the store.
    """

    def __init__(self, name: str, sha256: str, found: str) -> None:
        super().__init__(
            f"is not the locked file: its sha256 is {found}, and not {sha256}",
            where=name,
            hint="run: imagebuilder cache verify --remove",
        )
        self.name, self.sha256 = name, sha256


@contextlib.contextmanager
def explained(path: Path, done: str = "written") -> Iterator[None]:
    """Turn what the file system refuses into a StoreError that says what to do.

    Args:
        path: what is touched.
        done: what was to be done with it, as a participle.

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
    """Read a download through, for the disk may have rotted since its bytes were checked.

    Args:
        path: the file.
        sha256: what it has to be, in hex.
        name: what messages call it.

    Raises:
        DamagedDownloadError: it is something else by now.
        StoreError: it cannot be read.

    """
    with explained(path, "read"), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DamagedDownloadError(name, sha256, found)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second place: a hard link, or a copy where links cannot be.

    Raises:
        OSError: neither can be written.

    """
    try:
        target.hardlink_to(source)
    except OSError as error:
        # Another file system, one without hard links, too many links, or links that the kernel protects.
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP}:
            raise
        shutil.copyfile(source, target)


def remove_tree(path: Path) -> None:
    """Remove a file or folder, folders without write permission included; what cannot go is logged."""
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
    """Tell whether a file system may only be read."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def folder(path: Path) -> Path:
    """Make a folder where there is none, and give it back."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_file(path: Path, size: int | None) -> bool:
    """Tell whether a file is there, with the size in bytes that is known of it; None knows none."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (size is None or status.st_size == size)


def holds(path: Path, data: bytes) -> bool:
    """Tell whether a file has this content."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def touch(path: Path) -> bool:
    """Note the time of use, by which `cache prune` chooses; a store that is only readable works too."""
    with contextlib.suppress(OSError):
        os.utime(path)
    return True


@contextlib.contextmanager
def flock(path: Path, kind: int) -> Iterator[Any]:
    """Hold a lock between processes and threads; the kernel frees it when its holder dies."""
    with explained(path):
        folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with explained(path):
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
