"""Versions of Debian packages: how to compare them, and which part is the upstream version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cmp_to_key
from itertools import zip_longest

# Debian adds these if it had to change upstream's source: 1.2+dfsg, 1.2~ds1, 1.2+repack.
_REPACKED = re.compile(r"[+~.](?:dfsg|ds|repack|debian)[0-9.]*.*")
# OpenSSH's portable release, 10.0p1, is version 10.0 of OpenSSH.
_PORTABLE = re.compile(r"(?<=[0-9])p[0-9]+$")
# NVIDIA's components add the release that they belong to: 12.4.131~12.4.1.
_RELEASE = re.compile(r"(?<=[0-9])~[0-9.]+$")
_RUNS = re.compile(r"([^0-9]*)([0-9]*)")


def upstream(version: str) -> str:
    """Remove Debian's additions from a version: epoch, revision, repacking marks.

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
    """Return the highest version; "" if there are none."""
    return max(versions, key=cmp_to_key(compare), default="")


def compare(one: str, other: str) -> int:
    """Compare two versions by the rules of deb-version(7): below 0, 0, or above 0.

    >>> compare("1:1.0", "2.0"), compare("2.26.2-1+cuda12.8", "2.26.5-1"), compare("1.0~rc1", "1.0")
    (1, -1, -1)
    """
    for left, right in zip(_parts(one), _parts(other), strict=True):
        if order := _compare_part(left, right):
            return order
    return 0


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    upstream_part, _, revision = (rest if colon else version).rpartition("-")
    return (epoch if colon else "0", upstream_part or revision, revision if upstream_part else "0")


def _compare_part(one: str, other: str) -> int:
    """Compare digits as numbers, other text by character: `~` before the end, letters before the rest."""
    for left, right in zip_longest(_RUNS.findall(one), _RUNS.findall(other), fillvalue=("", "")):
        keys = [((*map(_rank, text), 0), int(number or "0")) for text, number in (left, right)]
        if keys[0] != keys[1]:
            return 1 if keys[0] > keys[1] else -1
    return 0


def _rank(char: str) -> int:
    # The end counts as 0; only the tilde sorts below it.
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
