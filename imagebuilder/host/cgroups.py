"""Recognise the hybrid layout of control groups, in which crun, Podman's default runtime, cannot start.

Some hosts mount some controllers as version 1, and a version 2 hierarchy that holds the others. crun starts
containers there only if version 2 holds none. Mounting a controller as version 1 takes it from version 2.

`scripts/services` imports this module before anything is installed, so it may import only the standard
library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# crun looks at exactly these two: libcrun_get_cgroup_mode.
ROOT = Path("/sys/fs/cgroup")
UNIFIED = ROOT / "unified"
# crun's message, the same in every release so far.
COMPLAINT = "cgroups in hybrid mode not supported"
ADVICE = (
    "version 2 of the host's cgroups still holds controllers: `imagebuilder doctor` names the commands that "
    "mount them as version 1; or let Podman run containers with runc"
)
# The only controller whose name differs in version 1.
_VERSION_1 = {"io": "blkio"}


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Controllers that version 2 still holds, by their names in version 1.

    Attributes:
        movable: those that this kernel also offers as version 1.
        fixed: those that it offers only as version 2.

    """

    movable: tuple[str, ...]
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"hybrid: version 2 in {UNIFIED} still holds {', '.join(self.movable + self.fixed)}"

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands that mount each movable controller as version 1; root runs them."""
        places = [(name, str(ROOT / name)) for name in self.movable]
        return tuple(
            command
            for name, place in places
            for command in (("mkdir", "-p", place), ("mount", "-t", "cgroup", "-o", name, "cgroup", place))
        )

    @property
    def remedy(self) -> str:
        """What a person has to do."""
        if self.fixed:
            return 'let Podman run containers with runc: `runtime = "runc"` under [engine] in containers.conf'
        return "sudo sh -c '" + " && ".join(" ".join(words) for words in self.commands) + "'"


def look(read: Callable[[Path], str] | None = None) -> Hybrid | None:
    """Return the layout that crun would complain about on this host; None if crun works.

    Args:
        read: returns a file's text, "" for a missing file. Without it, this host's files are read.

    """
    ask = read or _read
    if not _is_hybrid(ask(Path("/proc/self/mounts"))):
        return None
    held = [_VERSION_1.get(name, name) for name in ask(UNIFIED / "cgroup.controllers").split()]
    if not held:
        return None
    enabled = _version_1(ask(Path("/proc/cgroups")))
    return Hybrid(
        movable=tuple(name for name in held if name in enabled),
        fixed=tuple(name for name in held if name not in enabled),
    )


def _is_hybrid(mounts: str) -> bool:
    """Return True if `unified` is a version 2 hierarchy and the folder above it is not."""
    kinds: dict[str, str] = {}
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split()
        kinds[place] = kind  # a later mount hides an earlier one
    return kinds.get(str(ROOT)) == "tmpfs" and kinds.get(str(UNIFIED)) == "cgroup2"


def _version_1(text: str) -> frozenset[str]:
    """Read /proc/cgroups: the enabled controllers of version 1."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return frozenset(row[0] for row in rows if row[3] == "1")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
