"""The one list of what images of different engines may differ in, each entry with its reason.

how         what is still required of a path that the list names
lines       the same lines, in any order
merged      the same file, by a path through /lib or /usr/lib
anything    nothing: it may differ, or be on one side only
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tests.support import contents
from tests.support.contents import Change, Item


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Paths that may differ, as a pattern; how, and why."""

    paths: str
    how: Literal["lines", "merged", "script", "anything"]
    reason: str


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        paths=r"etc/g?shadow|var/lib/dpkg/triggers/File",
        how="lines",
        reason="a line is added when a package is configured, and apt's order is not ours",
    ),
    Allowed(
        paths=r"etc/systemd/system/[^/]+\.wants/apt-daily(-upgrade)?\.timer",
        how="merged",
        reason="enabled by apt's script in a base without systemd, by systemd's where both come in one go",
    ),
    Allowed(
        paths=r"dev",
        how="anything",
        reason="BuildKit leaves the folder that it mounted devices on; a container's engine makes its own",
    ),
    Allowed(
        paths=r"opt/venv/lib/python[\d.]+/site-packages/[^/]+\.dist-info/(INSTALLER|RECORD|REQUESTED)",
        how="anything",
        reason="pip writes down that it was pip; RECORD lists those files, and has another order",
    ),
    Allowed(
        paths=r"opt/venv/bin/[^/]+",
        how="script",
        reason="pip's lines around the call of a console script are not those of the wheel specification",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One image: its layers, the lowest first."""

    blobs: Sequence[Path]

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """Every path; gigabytes are read for it, once."""
        return contents.of_layers(self.blobs)


def differences(ours: Side, theirs: Side) -> tuple[list[str], set[str]]:
    """Compare two images.

    Returns:
        What differs and may not, a line each; and the patterns of the list that were needed.

    """
    wrong, used = [], set()
    for change in contents.compare(ours.items, theirs.items):
        rule = _rule(change)
        if rule is not None and _holds(rule, change, ours, theirs):
            used.add(rule.paths)
        else:
            wrong.append(f"{change.path}: {', '.join(change.what)}: {change.before} | {change.after}")
    return wrong, used


def _rule(change: Change) -> Allowed | None:
    return next((rule for rule in ALLOWED if re.fullmatch(rule.paths, change.path)), None)


def _holds(rule: Allowed, change: Change, ours: Side, theirs: Side) -> bool:
    if rule.how == "anything":
        return True
    if change.before is None or change.after is None:
        return False
    if rule.how == "merged":
        targets = {item.target.removeprefix("/usr") for item in (change.before, change.after)}
        return change.what == ("target",) and len(targets) == 1
    texts = [contents.read(side.blobs, change.path).splitlines() for side in (ours, theirs)]
    keep = _call if rule.how == "script" else sorted
    return change.what == ("sha256",) and keep(texts[0]) == keep(texts[1])


def _call(lines: list[bytes]) -> list[bytes]:
    """Pick what a console script is about: its interpreter, what it imports from a package, and the call."""
    return [lines[0], *(line for line in lines if line.startswith((b"from ", b"    sys.exit(")))]
