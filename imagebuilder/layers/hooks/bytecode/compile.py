"""Compile modules, with the image's own Python: the standard library only, of Python 3.9 and newer.

    compile.py SOURCES BYTECODE MAJOR.MINOR

Both files are records one after the other: a head (`_HEAD`), the module's path in the image without the slash
in front, and its source or its .pyc. What Python cannot compile has no record in the second: templates, and
test data that is broken on purpose or for Python 2.

What marshal writes depends on which strings the process has interned before, and so on what it compiled
before. So each batch of modules has a process of its own, that begins where all the others do: the bytes
depend on the batch alone, whatever the number of processes and whichever is first.

Modules are what others wrote, and some are made to break a compiler. What exhausts its stack, or the memory
or processor time that a process has here, is left out like any other module that does not compile. Where that
kills the process, each module of its batch gets one of its own, and those that end theirs are left out. The
limits are the same on every host, and sources have 4 MiB at most (`layers/bytecode.py`). A module that was
made to take about as long as the limit may compile on one host and not on another.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import struct
import sys
import warnings
from collections import deque
from importlib.util import MAGIC_NUMBER
from types import CodeType

_HEAD = struct.Struct("<IIQ")  # batch, length of the path, length of the content
# PEP 552: no flags, so the time and the size of the source follow. In a layer every time is the epoch.
_PYC = struct.Struct("<4sIII")
_TIME = 0
# What a process may take. The stack's limit has to be there before Python starts: python.sh sets it.
_MEMORY = 2 << 30
_SECONDS = 60
# Since 3.11 marshal sorts what is in a set (bpo-37596). Before, it is in the order of the hashes, and that of
# None and of `...` is an address, which differs from one process to the next.
_SORTED_SETS = sys.version_info >= (3, 11)

# Path, offset and length of each source, and the batch's number.
Batch = list[tuple[str, int, int, int]]


def main(sources: str, bytecode: str, release: str) -> None:
    if release != "{}.{}".format(*sys.version_info):
        sys.exit(f"this is Python {sys.version}, not {release}")
    warnings.simplefilter("ignore")
    source = os.open(sources, os.O_RDONLY)
    made = os.open(bytecode, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    room = len(os.sched_getaffinity(0))
    running: dict[int, Batch] = {}
    waiting = deque(index(source))
    while waiting or running:
        if waiting and len(running) < room:
            batch = waiting.popleft()
            child = os.fork()
            if child == 0:
                limit()
                work(source, made, batch)
            running[child] = batch
        else:
            waiting.extend(reap(running))


def limit() -> None:
    for kind, wanted in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def index(source: int) -> list[Batch]:
    """Find the sources, a list for each batch."""
    batches: dict[int, Batch] = {}
    at, end = 0, os.fstat(source).st_size
    while at < end:
        batch, path_length, length = _HEAD.unpack(os.pread(source, _HEAD.size, at))
        at += _HEAD.size
        path = os.pread(source, path_length, at).decode()
        at += path_length
        batches.setdefault(batch, []).append((path, at, length, batch))
        at += length
    return list(batches.values())


def reap(running: dict[int, Batch]) -> list[Batch]:
    """Wait for any of the processes; gives what has to be tried once more, a module at a time.

    The build fails where the host ended a process, or it could not write: that says nothing about a module.
    """
    child, status = os.wait()
    batch = running.pop(child)
    code = os.waitstatus_to_exitcode(status)
    if code > 0 or code == -signal.SIGKILL:
        sys.exit(f"Python ended with {code} at /{batch[0][0]} or a module beside it")
    return [[module] for module in batch] if code and len(batch) > 1 else []


def work(source: int, made: int, batch: Batch) -> None:
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
    """Make the .pyc of a module, as the import system would; empty where it cannot be compiled.

    Older parsers say MemoryError for what is nested too deeply, as for what takes more than the limit.
    """
    try:
        code = compile(source, f"/{path}", "exec", dont_inherit=True)
        if not _SORTED_SETS and has_unsettled_set(code):
            return b""
        return _PYC.pack(MAGIC_NUMBER, 0, _TIME, len(source) & 0xFFFFFFFF) + marshal.dumps(code)
    except Exception:  # noqa: BLE001  (as pip: a module that does not compile fails when it is imported)
        return b""


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
