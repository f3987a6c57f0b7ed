"""Scripts that run in the sandbox where a layer is made, in a folder for each kind of layer."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from imagebuilder.core.process import CommandError
from imagebuilder.errors import EnvironmentFault
from imagebuilder.store import explained

CONFINE = "confine.pl"
"""A script in `shared/` that runs programs of an image in separate namespaces, with a separate root."""
_REFUSED = re.compile(r"confine: (?:the kernel refuses|cannot write /proc/)")


def hand_in(name: str, folder: Path) -> None:
    """Copy the files of a subfolder of this package, and those of `shared/`.

    Folders inside them, such as `__pycache__`, are not copied.

    Args:
        name: the subfolder, such as `system`.
        folder: an existing folder; the files are written to it.

    Raises:
        StoreError: the store is full or not writable.

    """
    for part in (name, "shared"):
        for hook in resources.files(__package__).joinpath(part).iterdir():
            if hook.is_file():
                with explained(folder):
                    (folder / hook.name).write_bytes(hook.read_bytes())


def refused(error: CommandError, title: str = "") -> EnvironmentFault | None:
    """Return an error for a command that failed for lack of namespaces; None if it failed for another reason.

    Namespaces are required: with chroot alone, a program of an image that runs as root would be root on this
    host.
    """
    lines = [line for line in error.result.stderr.splitlines() if _REFUSED.match(line)]
    if not lines:
        return None
    return EnvironmentFault(
        "this host does not allow the namespaces that programs of the image need:\n" + "\n".join(lines),
        where=title,
        hint="check the sysctls user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns; "
        "in a container, give it `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; "
        "or `--tools container`, or `--engine docker`; `imagebuilder doctor` checks it",
    )
