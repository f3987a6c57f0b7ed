"""Platforms of images, by their OCI names: `linux/arm64`. Only `own` asks this host."""

from __future__ import annotations

import platform as host
from collections.abc import Mapping

from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import InputError

DEFAULT = "linux/amd64"
# Platform, and the machine's name in the kernel, Python's wheels and qemu. Debian's name of the architecture
# is OCI's for all of them (wiki.debian.org/SupportedArchitectures; Go's GOARCH, which image-spec refers to).
MACHINES: Mapping[str, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
KNOWN = tuple(sorted(MACHINES))


def architecture(platform: str) -> str:
    """Return the architecture of a platform, by its Debian and OCI name: `arm64`."""
    return platform.partition("/")[2]


def of(architecture: str) -> str:
    """Return the platform of an architecture: `linux/arm64`."""
    return f"linux/{architecture}"


def own() -> str:
    """Return the Linux platform of this host's machine; "" if images are not made for it."""
    # Systems other than Linux report `arm64`, and their engines run Linux for the same machine.
    machine = host.machine().lower()
    return next((name for name, known in MACHINES.items() if machine in {known, architecture(name)}), "")


def meant(word: str) -> str:
    """Suggest the closest platform for an unknown name: a sentence for a hint.

    >>> meant("aarch64"), meant("linux/arm64/v8")
    ('perhaps you meant `linux/arm64`', 'perhaps you meant `linux/arm64`')
    """
    low = word.lower()
    for name, machine in MACHINES.items():
        if machine in low or architecture(name) in low:
            return f"perhaps you meant `{name}`"
    # Compare only the part after the slash: the common "linux/" would make all names similar.
    near = nearest(low.rpartition("/")[2], map(architecture, KNOWN))
    return near.replace("`", "`linux/", 1) or f"known: {', '.join(KNOWN)}"


def check(word: str, *, where: str = "--platform") -> str:
    """Return a platform's name.

    Raises:
        InputError: images are not made for it.

    """
    if word not in MACHINES:
        raise InputError(
            f"`{printable(word)}` is not a platform that images are made for", where=where, hint=meant(word)
        )
    return word
