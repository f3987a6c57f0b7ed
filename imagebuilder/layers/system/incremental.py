"""Installs packages on top of a base from a registry: the parts in which this differs from `install`.

The base's layers are merged into one tar, which a setup hook of mmdebstrap unpacks. The packages are
installed as on a bootstrapped system. Then a script inside the root compares it with the base, file by file.
The layer has the differences: changed and new files, and whiteouts for removed ones.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from imagebuilder.bases import tree
from imagebuilder.errors import BuildError
from imagebuilder.plan import UpperOsLayer
from imagebuilder.store import Store, explained

_BASE = "base.tar"
_BEFORE = "before"
# These hooks replace `extract.sh` and `finish.sh` of a bootstrapped system.
_SCRIPT = 'sh "$1/imagebuilder/hooks/{}.sh" "$1"'


def lay_out(layer: UpperOsLayer, store: Store, folder: Path, handed: Path) -> tuple[str, ...]:
    """Write the base as one tar into a folder, and the list of its files into `handed`.

    Returns:
        The paths of the written files, relative to the folder.

    Raises:
        BuildError: a layer of the base is damaged, or the base has a file where the build puts its programs.
        StoreError: the disk is full.

    """
    title = f"{layer.distribution} {layer.suite}"
    blobs = [(store.download(item.sha256), item.diff_id) for item in layer.below]
    base = tree.read(blobs, lambda _path: False, title)
    if handed.name in base.root.children:
        # It would replace the hooks, which run outside of the base.
        raise BuildError(
            f"the base has a folder or a file `/{handed.name}`, where a build puts its own programs",
            where=title,
            hint="choose another base, or remove it from this one",
        )
    place = folder / _BASE
    with explained(place), place.open("xb") as out, (handed / _BEFORE).open("x", encoding="utf-8") as lines:
        for seen in tree.write(base, [path for path, _ in blobs], out, title):
            lines.write(f"{seen.line()}\n")
    return _BASE, f"{handed.name}/{_BEFORE}"


def base_paths(handed: Path) -> frozenset[str]:
    """Return the paths of the base, from the list that `lay_out` wrote."""
    with (handed / _BEFORE).open(encoding="utf-8") as lines:
        return frozenset(json.loads(line)[0] for line in lines)


def setup_hooks(folder: Path) -> tuple[str, ...]:
    """Return the hooks that unpack the base as the root; mmdebstrap must know the folder by this path."""
    return (
        f"--setup-hook={_SCRIPT.format('clear')}",
        f"--setup-hook=tar-in {shlex.quote(str(folder / _BASE))} /",
        f"--setup-hook={_SCRIPT.format('mark')}",
    )


def last_hooks(tar: Path) -> tuple[str, ...]:
    """Return the hooks that write the layer; mmdebstrap must know the tar by this path."""
    return (
        f"--customize-hook={_SCRIPT.format('finish_upper')}",
        f"--customize-hook=download /imagebuilder/layer.tar {shlex.quote(str(tar))}",
    )
