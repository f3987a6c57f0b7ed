"""Programs of ours that run where a layer is made: the files of the folders in here."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from imagebuilder.core.process import CommandError
from imagebuilder.errors import EnvironmentFault
from imagebuilder.store import explained

CONFINE = "confine.pl"
"""Of `shared/`: gives programs of an image namespaces and a root of their own."""
_REFUSED = re.compile(r"confine: (?:the kernel refuses|cannot write /proc/)")


def hand_in(name: str, folder: Path) -> None:
    """Copy the files of a folder of this package, and those of `shared/`.

    Folders in there stay: pip compiles modules into one.

    Args:
        name: of the folder, as in `system`.
        folder: where to; it is there already.

    Raises:
        StoreError: the store is full or not writable.

    """
    for part in (name, "shared"):
        for hook in resources.files(__package__).joinpath(part).iterdir():
            if hook.is_file():
                with explained(folder):
                    (folder / hook.name).write_bytes(hook.read_bytes())


def refused(error: CommandError, where: str = "") -> EnvironmentFault | None:
    """Explain a command that failed because the kernel gives no namespaces; None where that is not why.

    There is no way on without them: behind chroot alone, a program of an image that runs as root is this
    host's root.
    """
    lines = [line for line in error.result.stderr.splitlines() if _REFUSED.match(line)]
    if not lines:
        return None
    return EnvironmentFault(
        "this host does not let programs of the image run in namespaces of their own:\n" + "\n".join(lines),
        where=where,
        hint="check the sysctls user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns; "
        "in a container, give it `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; "
        "or `--tools container`, or `--engine docker`; `imagebuilder doctor` looks into it",
    )
