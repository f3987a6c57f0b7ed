"""Can this host run another machine's programs? Natively, or with qemu's help through binfmt_misc.

The kernel hands a program whose first bytes match an entry to the entry's interpreter
(https://docs.kernel.org/admin-guide/binfmt-misc.html). Only an entry with the flag F helps here: its
interpreter was opened when it was registered, and is there in a root that has no such file.
"""

from __future__ import annotations

import contextlib
import platform as host
import struct
from pathlib import Path

from imagebuilder.core import platforms
from imagebuilder.errors import EnvironmentFault

_FOLDER = Path("/proc/sys/fs/binfmt_misc")
# e_machine of the ELF header (elf(5), and the processor supplements of the System V ABI).
_ELF_MACHINES = {"linux/amd64": 62, "linux/arm64": 183}


def require(platform: str, folder: Path = _FOLDER) -> None:
    """Make sure that programs of a platform can be run here: the OS layer's packages run their own scripts.

    Raises:
        EnvironmentFault: they cannot; says what to install, or where else to build.

    """
    # On another system the tools run in an engine's virtual machine, which alone knows (Docker Desktop's runs
    # both): there it is found out when the first package's script is run.
    if runs(platform, folder) or host.system() != "Linux":
        return
    reason = "no emulator is registered for its programs"
    if not (folder / "register").exists():
        reason = "the kernel's binfmt_misc is not mounted here"
    elif _entries(folder, platform):
        reason = "the emulator that is registered cannot be seen inside of another root (it lacks the flag F)"
    raise fault(platform, reason)


def fault(platform: str, reason: str) -> EnvironmentFault:
    """Say that programs of a platform cannot be run, and what to do."""
    return EnvironmentFault(
        f"the packages of {platform} have to be run when they are installed, and {reason}",
        where=f"this host is {platforms.own() or host.machine()}",
        hint="as root: apt-get install qemu-user-static (from Debian 13 on: qemu-user-binfmt), with "
        "binfmt_misc mounted; or build on a host of that machine, `imagebuilder build RECIPE --platform "
        f"{platform}`, push from there, and join what was pushed (docs/how-to/platforms.md)",
    )


def runs(platform: str, folder: Path = _FOLDER) -> bool:
    """Tell whether programs of a platform can be run here, in a root of their own."""
    if host.system() == "Linux" and platform == platforms.own():
        return True
    return any("F" in flags for flags in _entries(folder, platform))


def _entries(folder: Path, platform: str) -> tuple[str, ...]:
    """List the flags of the enabled entries that take a platform's programs."""
    # What binfmt_misc compares: the first bytes of the ELF header of a 64-bit little-endian executable.
    wanted = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, _ELF_MACHINES[platform])
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name in {"register", "status"}:
                continue
            with contextlib.suppress(OSError, ValueError):
                entry = _parse(path.read_text(encoding="utf-8"))
                if entry.get("enabled") is not None and _takes(entry, wanted):
                    found.append(entry.get("flags:", ""))
    return tuple(found)


def _parse(text: str) -> dict[str, str]:
    """Read an entry as the kernel shows it: a line has a word and its value."""
    return {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in text.splitlines()}


def _takes(entry: dict[str, str], header: bytes) -> bool:
    magic = bytes.fromhex(entry.get("magic", ""))
    mask = bytes.fromhex(entry["mask"]) if "mask" in entry else b"\xff" * len(magic)
    if not magic or entry.get("offset", "0") != "0" or len(magic) > len(header):
        return False
    return all((have ^ want) & care == 0 for have, want, care in zip(header, magic, mask, strict=False))
