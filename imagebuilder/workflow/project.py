"""The folders of the user's project that a recipe copies: what is in them, and which commit they are of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.catalog import Selection
from imagebuilder.core import process
from imagebuilder.errors import ImagebuilderError
from imagebuilder.layers import project
from imagebuilder.layers.project import Listing
from imagebuilder.plan import NO_PROJECT, Project

# Only the objects of a commit are asked for: nothing that a repository's own settings could make git run.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_GIT_ENV = {
    # A clone without all objects would fetch them, with commands that its settings name.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
_GIT_LIMIT = 10.0  # seconds
_FILE_MODES = {"100644": 0o644, "100755": 0o755, "120000": 0o777}


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a recipe copies.

    Attributes:
        project: what the plan has to know.
        files, bytes: how much there is.
        commit: that the files are of, as far as they are; "" where none is known.
        uncommitted: files that are not as the commit has them, each as the recipe names its folder.

    """

    project: Project = NO_PROJECT
    files: int = 0
    bytes: int = 0
    commit: str = ""
    uncommitted: tuple[str, ...] = ()


def read_project(recipe: Path, selection: Selection) -> Copied:
    """Read the folders that a recipe copies, and that of the user's package.

    Args:
        recipe: its path, from which the folders' are relative.
        selection: what it says.

    Raises:
        InputError: a folder is not there, or holds what cannot be copied.

    """
    copies, package = selection.recipe.copies, selection.recipe.package
    if not copies and not package:
        return Copied()
    named: list[tuple[str, tuple[str | int, ...]]] = [
        (copy.source, ("copy", number, "from")) for number, copy in enumerate(copies)
    ]
    named += [(package.source, ("project",))] if package else []
    folders = [project.find(recipe.parent, source, selection.places.of(*key)) for source, key in named]
    listings = [project.read(folder) for folder in folders]
    commits = [_commit(folder, listing) for folder, listing in zip(folders, listings, strict=True)]
    commit = next((name for name, _ in commits if name), "")
    changed = tuple(
        os.path.normpath(f"{source}/{path}")
        for (source, _), listing, (name, known) in zip(named, listings, commits, strict=True)
        for path in _uncommitted(listing, known if name == commit else {})
    )
    return Copied(
        project=Project(
            checksums=tuple(listing.checksum for listing in listings[: len(copies)]),
            package=listings[-1].checksum if package else "",
            revision=f"{commit}-dirty" if commit and changed else commit,
        ),
        files=sum(file.kind != "dir" for listing in listings for file in listing.files),
        bytes=sum(listing.bytes for listing in listings),
        commit=commit,
        uncommitted=changed if commit else (),
    )


def _commit(folder: Path, listing: Listing) -> tuple[str, Mapping[str, tuple[int, str]]]:
    """Ask Git for the commit of a folder, and for mode and blob of its files there.

    Both are empty where there is no Git, no commit, or one that has none of the files.
    """
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD^{commit}").strip()
        tree = _git(folder, "ls-tree", "-r", "-z", commit)
    except ImagebuilderError:
        return "", {}
    known: dict[str, tuple[int, str]] = {}
    for row in tree.split("\0"):
        facts, _, path = row.partition("\t")
        mode, _, rest = facts.partition(" ")
        if mode in _FILE_MODES:
            known[path] = _FILE_MODES[mode], rest.partition(" ")[2]
    if not any(file.path in known for file in listing.files):
        return "", {}
    return commit, known


def _uncommitted(listing: Listing, known: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Name the files that a commit has not, or has otherwise."""
    for file in listing.files:
        if file.kind != "dir":
            mode, blob = known.get(file.path, (0, ""))
            if mode != file.mode or blob not in file.blobs:
                yield file.path


def _git(folder: Path, *words: str) -> str:
    argv = (*_GIT, "-C", str(folder), *words)
    return process.run(argv, timeout=_GIT_LIMIT, env=_GIT_ENV).stdout
