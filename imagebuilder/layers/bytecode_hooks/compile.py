"""Compile modules, with the image's own Python: the standard library only, of Python 3.9 and newer.

    compile.py SOURCES BYTECODE MAJOR.MINOR

Both files are records one after the other: a head (`_HEAD`), the module's path in the image without the slash
in front, and its source or its .pyc. What Python cannot compile has no record in the second: templates, and
test data that is broken on purpose or for Python 2.

What marshal writes depends on which strings the process has interned before, and so on what it compiled
before. So each batch of modules has a process of its own, that begins where all the others do: the bytes
depend on the batch alone, whatever the number of processes and whichever is first.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
import warnings
from importlib.util import MAGIC_NUMBER
from types import CodeType

_HEAD = struct.Struct("<IIQ")  # batch, length of the path, length of the content
# PEP 552: no flags, so the time and the size of the source follow. In a layer every time is the epoch.
_PYC = struct.Struct("<4sIII")
_TIME = 0
# Since 3.11 marshal sorts what is in a set (bpo-37596). Before, it is in the order of the hashes, and that of
# None and of `...` is an address, which differs from one process to the next.
_SORTED_SETS = sys.version_info >= (3, 11)


def main(sources: str, bytecode: str, release: str) -> None:
    if release != "{}.{}".format(*sys.version_info):
        sys.exit(f"this is Python {sys.version}, not {release}")
    warnings.simplefilter("ignore")
    source = os.open(sources, os.O_RDONLY)
    made = os.open(bytecode, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    room = len(os.sched_getaffinity(0))
    running: dict[int, str] = {}
    for batch in index(source):
        if len(running) >= room:
            reap(running)
        child = os.fork()
        if child == 0:
            work(source, made, batch)
        running[child] = batch[0][0]
    while running:
        reap(running)


def index(source: int) -> list[list[tuple[str, int, int, int]]]:
    """Read path, offset and length of each source, and its batch's number; a list for each batch."""
    batches: dict[int, list[tuple[str, int, int, int]]] = {}
    at, end = 0, os.fstat(source).st_size
    while at < end:
        batch, path_length, length = _HEAD.unpack(os.pread(source, _HEAD.size, at))
        at += _HEAD.size
        path = os.pread(source, path_length, at).decode()
        at += path_length
        batches.setdefault(batch, []).append((path, at, length, batch))
        at += length
    return list(batches.values())


def reap(running: dict[int, str]) -> None:
    """Wait for any of the processes; the build fails when one did."""
    child, status = os.wait()
    first = running.pop(child)
    if status:
        sys.exit(f"Python ended with {os.waitstatus_to_exitcode(status)} at /{first} or a module beside it")


def work(source: int, made: int, batch: list[tuple[str, int, int, int]]) -> None:
    """Compile a batch, and end this process; what it made is written at once, so that records stay whole."""
    code = 1
    try:
        out = bytearray()
        for path, at, length, number in batch:
            pyc = compiled(path, os.pread(source, length, at))
            if pyc:
                name = path.encode()
                out += _HEAD.pack(number, len(name), len(pyc)) + name + pyc
        code = 0 if os.write(made, out) == len(out) else 1
    except BaseException as error:  # noqa: BLE001  (whatever it was, only the parent may go on)
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def compiled(path: str, source: bytes) -> bytes:
    """Make the .pyc of a module, as the import system would; empty where it cannot be compiled."""
    try:
        code = compile(source, f"/{path}", "exec", dont_inherit=True)
    except MemoryError:
        raise  # of this moment, not of the module
    except Exception:  # noqa: BLE001  (as pip: a module that does not compile fails when it is imported)
        return b""
    if not _SORTED_SETS and has_unsettled_set(code):
        return b""
    return _PYC.pack(MAGIC_NUMBER, 0, _TIME, len(source) & 0xFFFFFFFF) + marshal.dumps(code)


def has_unsettled_set(value: object) -> bool:
    """Tell whether code holds a set in no fixed order: one with members that are hashed by their address."""
    if isinstance(value, CodeType):
        return any(has_unsettled_set(constant) for constant in value.co_consts)
    if isinstance(value, tuple):
        return any(has_unsettled_set(item) for item in value)
    return (
        isinstance(value, frozenset) and len(value) > 1 and any(is_hashed_by_address(item) for item in value)
    )


def is_hashed_by_address(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(is_hashed_by_address(item) for item in value)
    return not isinstance(value, (str, bytes, int, float, complex))


if __name__ == "__main__":
    main(*sys.argv[1:])
