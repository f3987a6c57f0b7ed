"""Tags of wheels: which files an image's Python can install, and which of them is the most specific."""

from __future__ import annotations

import re
from functools import cache

import packaging.tags

# Names of manylinux from before PEP 600, and the version of the C library for each.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_GLIBC = re.compile(r"2\.([0-9]{1,2})")


def is_glibc(version: str) -> bool:
    """Return whether a text is a version of the C library in the form of wheel tags: `2.41`."""
    return _GLIBC.fullmatch(version) is not None


@cache
def order(python: str, glibc: str, machine: str) -> dict[str, int]:
    """Rank every tag that fits a Python and a C library; the most specific has the lowest rank."""
    major, minor = (int(part) for part in python.split("."))
    platforms: list[str] = []
    for level in range(int(glibc.split(".")[1]), 4, -1):
        platforms.append(f"manylinux_2_{level}_{machine}")
        if level in _LEGACY:
            platforms.append(f"{_LEGACY[level]}_{machine}")
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{major}{minor}"
    tags = [
        *packaging.tags.cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *packaging.tags.compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    ]
    return {str(tag): rank for rank, tag in reversed(list(enumerate(tags)))}
