"""Platforms that images are made for, as OCI names them: `linux/arm64`. Pure, but for this host's own."""

from __future__ import annotations

import platform as host
from collections.abc import Mapping

from imagebuilder.errors import InputError
from imagebuilder.yamlfile import nearest, printable

DEFAULT = "linux/amd64"
# Platform and what the kernel, Python's wheels and qemu call the machine. Debian's name of the architecture
# is OCI's for all of them (wiki.debian.org/SupportedArchitectures; Go's GOARCH, which image-spec refers to).
MACHINES: Mapping[str, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
KNOWN = tuple(sorted(MACHINES))


def architecture(platform: str) -> str:
    """Give the architecture of a platform, in Debian's and OCI's words: `arm64`."""
    return platform.partition("/")[2]


def of(architecture: str) -> str:
    """Give the platform of an architecture: `linux/arm64`."""
    return f"linux/{architecture}"


def own() -> str:
    """Name the platform of Linux on this host's machine; "" where no image is made for such a machine."""
    # Other systems than Linux say `arm64` themselves, and their engines run Linux of the same machine.
    machine = host.machine().lower()
    return next((name for name, known in MACHINES.items() if machine in {known, architecture(name)}), "")


def meant(word: str) -> str:
    """Say which platform a word that is none most likely stands for: a sentence for a hint.

    >>> meant("aarch64"), meant("linux/arm64/v8")
    ('perhaps you meant `linux/arm64`', 'perhaps you meant `linux/arm64`')
    """
    low = word.lower()
    for name, machine in MACHINES.items():
        if machine in low or architecture(name) in low:
            return f"perhaps you meant `{name}`"
    # What follows the slash alone: "linux/" would make any two alike.
    near = nearest(low.rpartition("/")[2], map(architecture, KNOWN))
    return near.replace("`", "`linux/", 1) or f"known: {', '.join(KNOWN)}"


def check(word: str, *, where: str = "--platform") -> str:
    """Return a platform's name.

    Raises:
        InputError: it is none that images are made for.

    """
    if word not in MACHINES:
        raise InputError(
            f"`{printable(word)}` is not a platform that images are made for", where=where, hint=meant(word)
        )
    return word
