"""Read the project folders that a recipe copies: their files, and the Git commit that they are from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.catalog import Selection
from imagebuilder.core import process
from imagebuilder.errors import ImagebuilderError
from imagebuilder.plan import NO_PROJECT, Project

if TYPE_CHECKING:
    from imagebuilder.layers.project import Listing

# Only commands that read a commit's objects: no setting of a repository can make them run a program.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_GIT_ENV = {
    # A partial clone would fetch missing objects, with commands from its own settings.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
_GIT_LIMIT = 10.0  # seconds
_FILE_MODES = {"100644": 0o644, "100755": 0o755, "120000": 0o777}


@dataclass(frozen=True, kw_only=True)
class CopiedFolder:
    """One folder that a recipe copies.

    Attributes:
        source: the folder, relative to the recipe's.
        target: where the image has it; "" for the user's package, of which the image has the wheel's files.
        names: of its files and links, in the layer's order.
        bytes: size of its files.

    """

    source: str
    target: str
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a recipe copies.

    Attributes:
        project: what the plan needs to know.
        folders: in the recipe's order; that of the user's package is the last.
        commit: the commit that the files are from; "" if there is none.
        uncommitted: files that differ from the commit, by their paths from the recipe's folder.

    """

    project: Project = NO_PROJECT
    folders: tuple[CopiedFolder, ...] = ()
    commit: str = ""
    uncommitted: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        return sum(len(folder.names) for folder in self.folders)

    @property
    def bytes(self) -> int:
        return sum(folder.bytes for folder in self.folders)


def read_project(recipe: Path, selection: Selection) -> Copied:
    """Read the folders that a recipe copies, and the folder of the user's own package.

    Args:
        recipe: path of the recipe. The folders' paths are relative to its folder.
        selection: the recipe's selection.

    Raises:
        InputError: a folder does not exist, or has files that cannot be copied.

    """
    copies, package = selection.recipe.copies, selection.recipe.package
    tests = selection.recipe.checks.tests
    if not copies and not package and not tests:
        return Copied()
    from imagebuilder.layers import project  # late: most recipes copy nothing

    tested = project.find(recipe.parent, tests, selection.places.of("checks", "tests")) if tests else None
    named: list[tuple[str, tuple[str | int, ...]]] = [
        (copy.source, ("copy", number, "from")) for number, copy in enumerate(copies)
    ]
    named += [(package.source, ("project",))] if package else []
    targets = [*(copy.to for copy in copies), *([""] if package else [])]
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
            tests=project.checksum_of_tests(tested) if tested else "",
            revision=f"{commit}-dirty" if commit and changed else commit,
        ),
        folders=tuple(
            CopiedFolder(
                source=source,
                target=target,
                names=tuple(file.path for file in listing.files if file.kind != "dir"),
                bytes=listing.bytes,
            )
            for (source, _), target, listing in zip(named, targets, listings, strict=True)
        ),
        commit=commit,
        uncommitted=changed if commit else (),
    )


def _commit(folder: Path, listing: Listing) -> tuple[str, Mapping[str, tuple[int, str]]]:
    """Ask Git for the commit of a folder, and for the mode and blob of each file in that commit.

    Both are empty if there is no Git, no commit, or no file of the folder in the commit.
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
    """Yield the files that are not in the commit, or differ from it."""
    for file in listing.files:
        if file.kind != "dir":
            mode, blob = known.get(file.path, (0, ""))
            if mode != file.mode or blob not in file.blobs:
                yield file.path


def _git(folder: Path, *words: str) -> str:
    argv = (*_GIT, "-C", str(folder), *words)
    return process.run(argv, timeout=_GIT_LIMIT, env=_GIT_ENV).stdout
