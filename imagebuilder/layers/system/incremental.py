"""Packages on top of a base from a registry: what the frame of `layers.system` gets besides, or instead.

The base's layers are laid over each other into one tar, which mmdebstrap's setup hook unpacks. The packages
go in as on a system of our own. Then a script inside of the root compares it with the base, file by file, and
what differs is the layer: changed and new files, and whiteouts.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from imagebuilder.bases import tree
from imagebuilder.errors import BuildError
from imagebuilder.plan import UpperOsLayer
from imagebuilder.store import Store, explained

_BASE = "base.tar"
_BEFORE = "before"
# As `extract.sh` and `finish.sh` are for a system of our own.
_SCRIPT = 'sh "$1/imagebuilder/hooks/{}.sh" "$1"'


def lay_out(layer: UpperOsLayer, store: Store, folder: Path, handed: Path) -> tuple[str, ...]:
    """Write the base as one tar into a folder, and the list of what is in it to what the build hands in.

    Returns:
        What was written, by its name in the folder.

    Raises:
        BuildError: a layer of the base is damaged, or the base has what the build hands in.
        StoreError: the disk is full.

    """
    where = f"{layer.distribution} {layer.suite}"
    blobs = [(store.download(item.sha256), item.diff_id) for item in layer.below]
    found = tree.read(blobs, lambda _path: False, where)
    if handed.name in found.root.children:
        # It would take the place of the hooks, which run outside of the base.
        raise BuildError(
            f"the base has a folder or a file `/{handed.name}`, where a build puts its own programs",
            where=where,
            hint="take another base, or remove it from this one",
        )
    place = folder / _BASE
    with explained(place), place.open("xb") as out, (handed / _BEFORE).open("x", encoding="utf-8") as lines:
        for seen in tree.write(found, [path for path, _ in blobs], out, where):
            lines.write(f"{seen.line()}\n")
    return _BASE, f"{handed.name}/{_BEFORE}"


def setup_hooks(folder: Path) -> tuple[str, ...]:
    """Name the hooks that make the base the root; the folder is as mmdebstrap sees it."""
    return (
        f"--setup-hook={_SCRIPT.format('clear')}",
        f"--setup-hook=tar-in {shlex.quote(str(folder / _BASE))} /",
        f"--setup-hook={_SCRIPT.format('mark')}",
    )


def last_hooks(tar: Path) -> tuple[str, ...]:
    """Name the hooks that write the layer; the tar is as mmdebstrap sees it."""
    return (
        f"--customize-hook={_SCRIPT.format('finish_upper')}",
        f"--customize-hook=download /imagebuilder/layer.tar {shlex.quote(str(tar))}",
    )
