"""Runs a command as on a file system without hard links, such as exFAT or many network shares.

    python -m tests.support.nolinks COMMAND...

A seccomp filter (seccomp(2)) answers link(2) and linkat(2) with EPERM, as those file systems do (link(2)),
for the command and all that it starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

# The architecture's number, and those of link and linkat: uapi/linux/audit.h and uapi/asm/unistd.h.
_CALLS = {"x86_64": (0xC000003E, (86, 265)), "aarch64": (0xC00000B7, (37,))}
_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4


class _Program(ctypes.Structure):
    """`struct sock_fprog`: how many instructions, and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_links() -> None:
    """Let no hard link be made by this process and those that it starts, from now on and for good."""
    architecture, calls = _CALLS[platform.machine()]
    steps = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_LOAD, 0, 0, _NUMBER_AT))
    for call in calls:
        steps += [(_JUMP_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if library.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


if __name__ == "__main__":
    refuse_links()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  (no shell is wanted)
