"""Find out whether this host can run a platform's programs: natively, or by qemu through binfmt_misc.

If a program's first bytes match an entry of binfmt_misc, the kernel runs the entry's interpreter
(https://docs.kernel.org/admin-guide/binfmt-misc.html). Only entries with the flag F help here: the kernel
opened their interpreter at registration, so it works in a root that does not contain it.
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
    """Make sure that this host can run a platform's programs: Debian packages run scripts at installation.

    Raises:
        EnvironmentFault: it cannot. The hint says what to install, or where else to build.

    """
    # On macOS the tools run in the engine's virtual machine, which cannot be asked (Docker Desktop's runs
    # both platforms): there the first package's script would fail.
    if runs(platform, folder) or host.system() != "Linux":
        return
    reason = "no emulator is registered for its programs"
    if not (folder / "register").exists():
        reason = "the kernel's binfmt_misc is not mounted here"
    elif _entries(folder, platform):
        reason = "the registered emulator does not work inside another root (it lacks the flag F)"
    raise fault(platform, reason)


def fault(platform: str, reason: str) -> EnvironmentFault:
    """Return the error that a platform's programs cannot run here, with a remedy."""
    return EnvironmentFault(
        f"packages for {platform} run scripts when they are installed, and {reason}",
        where=f"this host is {platforms.own() or host.machine()}",
        hint="as root: apt-get install qemu-user-static (from Debian 13 on: qemu-user-binfmt), with "
        "binfmt_misc mounted; or build on a host of that platform, `imagebuilder build RECIPE --platform "
        f"{platform}`, push from there, and combine the images with `imagebuilder join`",
    )


def runs(platform: str, folder: Path = _FOLDER) -> bool:
    """Return whether this host can run a platform's programs in a root of their own."""
    if host.system() == "Linux" and platform == platforms.own():
        return True
    return any("F" in flags for flags in _entries(folder, platform))


def _entries(folder: Path, platform: str) -> tuple[str, ...]:
    """Return the flags of the enabled entries that match a platform's programs."""
    # binfmt_misc compares the first bytes of the ELF header; these are of a 64-bit little-endian executable.
    wanted = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, _ELF_MACHINES[platform])
    flags = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name in {"register", "status"}:
                continue
            with contextlib.suppress(OSError, ValueError):
                entry = _parse(path.read_text(encoding="utf-8"))
                if entry.get("enabled") is not None and _takes(entry, wanted):
                    flags.append(entry.get("flags:", ""))
    return tuple(flags)


def _parse(text: str) -> dict[str, str]:
    """Read an entry as the kernel shows it: each line has a word and its value."""
    return {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in text.splitlines()}


def _takes(entry: dict[str, str], header: bytes) -> bool:
    magic = bytes.fromhex(entry.get("magic", ""))
    mask = bytes.fromhex(entry["mask"]) if "mask" in entry else b"\xff" * len(magic)
    if not magic or entry.get("offset", "0") != "0" or len(magic) > len(header):
        return False
    return all((have ^ want) & care == 0 for have, want, care in zip(header, magic, mask, strict=False))
