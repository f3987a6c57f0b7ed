"""What a recipe copies of the user's own files: said by `check`, `plan` and `build`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuilder.cli.base import out, warn

if TYPE_CHECKING:
    from imagebuilder.workflow.project import Copied

_FEW = 5  # names that a warning gives


def show(copied: Copied) -> None:
    """Print number and size of the files, and their commit; nothing if the recipe copies none."""
    from imagebuilder.core.progress import human

    if not copied.folders:
        return
    revision = copied.project.revision
    of = f", revision {revision[:12]}" if revision else ""
    changed = f" with {len(copied.uncommitted)} changed" if copied.uncommitted else ""
    out(f"files   {copied.files} of yours, {human(copied.bytes)}{of}{changed}")


def warn_of_changes(copied: Copied) -> None:
    """Warn of files that the commit in the labels does not have, or has otherwise."""
    if not (names := copied.uncommitted):
        return
    from imagebuilder.core.yamlfile import printable  # late: it loads pydantic, which `--help` does without

    shown = ", ".join(map(printable, names[:_FEW])) + (
        f" and {len(names) - _FEW} more" if names[_FEW:] else ""
    )
    verb = "file is" if len(names) == 1 else "files are"
    warn(f"{len(names)} copied {verb} not as in commit {copied.commit[:12]}: {shown}")
