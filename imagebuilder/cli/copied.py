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


def told(copied: Copied, *, names: bool = False) -> dict[str, object]:
    """Return the same for JSON, and each folder; `names` adds the paths of its files.

    Returns:
        A field `copied`; no field if the recipe copies nothing.

    """
    if not copied.folders:
        return {}
    folders = [
        {
            "from": folder.source,
            **({"to": folder.target} if folder.target else {"package": True}),
            "files": len(folder.names),
            "bytes": folder.bytes,
            **({"names": list(folder.names)} if names else {}),
        }
        for folder in copied.folders
    ]
    summary: dict[str, object] = {"files": copied.files, "bytes": copied.bytes}
    summary |= {"revision": copied.project.revision, "uncommitted": len(copied.uncommitted)}
    if names:
        summary["uncommitted_names"] = list(copied.uncommitted)
    return {"copied": {**summary, "folders": folders}}


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
