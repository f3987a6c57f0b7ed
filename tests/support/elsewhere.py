"""Another place to build in: another user, host name, clock, time zone, locale, umask, and one processor.

Nothing of this host changes: the user exists in a mount namespace alone.
"""

from __future__ import annotations

import os
from pathlib import Path

USER = "elsewhere"
UID = 4242
DAYS = 400
_SUBORDINATE = 2_000_000  # the first of the ids that the user's namespace may use; no real user's

# The user may read what root may, for the program under test lies wherever this project was put; no more.
_SCRIPT = f"""
set -eu
folder=$1; shift
for file in passwd group subuid subgid; do mount --bind "$folder/$file" "/etc/$file"; done
hostname elsewhere
umask 077
exec setpriv --reuid={UID} --regid={UID} --clear-groups \\
    --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \\
    taskset --cpu-list 0 \\
    env PYTHONPATH="$folder/lib" TZ=Asia/Kolkata \\
    LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 HOME="$folder" USER={USER} LOGNAME={USER} "$@"
"""
# Only this program's clock: libfaketime does not work in the namespaces of pids that mmdebstrap makes.
_CLOCK = f"""
import time

_now, _now_ns = time.time, time.time_ns
time.time = lambda: _now() + {DAYS} * 86400
time.time_ns = lambda: _now_ns() + {DAYS} * 86400 * 10**9
"""


def command(folder: Path, *words: str | Path) -> list[str | Path]:
    """Make a command that runs another one elsewhere, without a network.

    Args:
        folder: an empty folder, for what makes the other place.
        words: the command; it finds its own folders writable if they are handed over with `give`.

    """
    for name, line in {
        "passwd": f"{USER}:x:{UID}:{UID}::{folder}:/bin/sh\n",
        "group": f"{USER}:x:{UID}:\n",
        "subuid": f"{USER}:{_SUBORDINATE}:65536\n",
        "subgid": f"{USER}:{_SUBORDINATE}:65536\n",
    }.items():
        place = Path("/etc", name)
        (folder / name).write_text((place.read_text() if place.exists() else "") + line)
        (folder / name).chmod(0o644)
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "sitecustomize.py").write_text(_CLOCK)
    give(folder)
    return ["unshare", "--mount", "--uts", "--net", "sh", "-c", _SCRIPT, "sh", folder, *words]


def give(folder: Path) -> None:
    """Hand a folder over to the other user; of files in it those that have no other name somewhere else."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() or path.stat().st_nlink == 1:
            os.chown(path, UID, UID)
