"""Versions of Debian packages: their order, and what of them is the upstream version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cmp_to_key
from itertools import zip_longest

# What Debian adds to an upstream version whose source it had to change: 1.2+dfsg, 1.2~ds1, 1.2+repack.
_REPACKED = re.compile(r"[+~.](?:dfsg|ds|repack|debian)[0-9.]*.*")
# OpenSSH's portable release, 10.0p1, is version 10.0 of OpenSSH.
_PORTABLE = re.compile(r"(?<=[0-9])p[0-9]+$")
# NVIDIA's parts carry the release that they came with: 12.4.131~12.4.1.
_RELEASE = re.compile(r"(?<=[0-9])~[0-9.]+$")
_RUNS = re.compile(r"([^0-9]*)([0-9]*)")


def upstream(version: str) -> str:
    """Take the packaging away from a Debian version: epoch, revision, repacking marks.

    >>> versions = ("1:10.0p1-7+deb13u4", "3.2.1+dfsg-1", "6.0.0~rc2-1", "12.4.131~12.4.1-2")
    >>> [upstream(text) for text in versions]
    ['10.0', '3.2.1', '6.0.0rc2', '12.4.131']
    """
    text = version.partition(":")[2] or version
    text = text.rpartition("-")[0] or text
    text = text.rpartition("+really")[2]
    text = _RELEASE.sub("", _PORTABLE.sub("", _REPACKED.sub("", text)))
    return text.replace("~", "")


def newest(versions: Iterable[str]) -> str:
    """Give the highest version; "" of none."""
    return max(versions, key=cmp_to_key(compare), default="")


def compare(one: str, other: str) -> int:
    """Order two versions as deb-version(7) says: below 0, 0, or above 0.

    >>> compare("1:1.0", "2.0"), compare("2.26.2-1+cuda12.8", "2.26.5-1"), compare("1.0~rc1", "1.0")
    (1, -1, -1)
    """
    for left, right in zip(_parts(one), _parts(other), strict=True):
        if found := _compare_part(left, right):
            return found
    return 0


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    upstream_part, _, revision = (rest if colon else version).rpartition("-")
    return (epoch if colon else "0", upstream_part or revision, revision if upstream_part else "0")


def _compare_part(one: str, other: str) -> int:
    """Compare digits as numbers and what stands between them by letter: `~` before the end, letters first."""
    for left, right in zip_longest(_RUNS.findall(one), _RUNS.findall(other), fillvalue=("", "")):
        keys = [((*map(_rank, text), 0), int(number or "0")) for text, number in (left, right)]
        if keys[0] != keys[1]:
            return 1 if keys[0] > keys[1] else -1
    return 0


def _rank(char: str) -> int:
    # The end counts 0: below it is only the tilde.
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
