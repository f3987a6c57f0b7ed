"""Compiles modules with the image's Python. Needs only the standard library of Python 3.9 or newer.

    compile.py SOURCES BYTECODE MAJOR.MINOR

Both files are sequences of records: a header (`_HEAD`), the module's path in the image without its first
slash, and its source or its .pyc. Modules that Python cannot compile have no record in BYTECODE: templates,
and test data that is broken on purpose or for Python 2.

The output of marshal depends on the strings that the process has interned, and so on the modules that it
compiled before. So each batch of modules has a separate process, and all processes begin in the same state.
The bytes then depend only on the batch, and not on the number or order of processes.

The modules are untrusted, and some are made to break a compiler. A module is left out if it exhausts the
stack, or the memory or processor time of its process. If that kills the process, each module of its batch is
compiled again in a separate process, and modules that kill theirs are left out. The limits are the same on
every host, and sources have at most 4 MiB (`layers/bytecode/layer.py`). A module made to take about as long
as the limit may compile on one host and not on another.
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
# PEP 552: with no flags set, the time and the size of the source follow. All files in layers have time 0.
_PYC = struct.Struct("<4sIII")
_TIME = 0
# Limits of a process. The limit of the stack must be set before Python starts: python.sh sets it.
_MEMORY = 2 << 30
_SECONDS = 60
# Since 3.11 marshal sorts the members of sets (bpo-37596). Before that, their order depends on their hashes,
# and the hashes of None and `...` are memory addresses.
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
    """Return the sources, a list for each batch."""
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
    """Wait for a process; returns the modules to compile again, each as a separate batch.

    The build fails if the host killed the process or it could not write, because no module caused that.
    """
    child, status = os.wait()
    batch = running.pop(child)
    code = os.waitstatus_to_exitcode(status)
    if code > 0 or code == -signal.SIGKILL:
        sys.exit(f"Python ended with {code} at /{batch[0][0]} or a module beside it")
    return [[module] for module in batch] if code and len(batch) > 1 else []


def work(source: int, made: int, batch: Batch) -> None:
    """Compile a batch, write all its records at once so that they stay whole, and end this process."""
    code = 1
    try:
        out = bytearray()
        for path, at, length, number in batch:
            pyc = compiled(path, os.pread(source, length, at))
            if pyc:
                name = path.encode()
                out += _HEAD.pack(number, len(name), len(pyc)) + name + pyc
        code = 0 if os.write(made, out) == len(out) else 1
    except BaseException as error:  # noqa: BLE001  (after any error, only the parent may continue)
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def compiled(path: str, source: bytes) -> bytes:
    """Return the .pyc that the import system would write for a module; b"" if it cannot be compiled.

    Older parsers raise MemoryError for code that is nested too deeply, as for code that exceeds the limit.
    """
    try:
        code = compile(source, f"/{path}", "exec", dont_inherit=True)
        if not _SORTED_SETS and has_unsettled_set(code):
            return b""
        return _PYC.pack(MAGIC_NUMBER, 0, _TIME, len(source) & 0xFFFFFFFF) + marshal.dumps(code)
    except Exception:  # noqa: BLE001  (as with pip, a module that does not compile fails on import)
        return b""


def has_unsettled_set(value: object) -> bool:
    """Return whether code contains a set whose order varies: one with members that are hashed by address."""
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
