"""Recipes that tests share, so that most of what they need is made already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.workflow import read_recipe

SHIPPED = Path(__file__).resolve().parents[2] / "recipes" / "cpu-mpi.yaml"
SSH = "ssh: {port: 2222, user: trainer}"
# As little as an image with a layer of each kind can have: making it again takes half a minute.
SMALL = f"""
name: small
base: debian:trixie
python: "3.13"
{SSH}
pip: [numpy]
"""


def like_shipped(folder: Path, name: str, changes: Mapping[str, str]) -> Path:
    """Write cpu-mpi with some changes, and a lock of the same packages.

    Args:
        folder: where to.
        name: the recipe's.
        changes: texts that cpu-mpi has, and what stands there instead. What packages it needs stays the same.

    """
    text = SHIPPED.read_text(encoding="utf-8")
    for old, new in {f"name: {SHIPPED.stem}": f"name: {name}", **changes}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    _, inputs = read_recipe(path)
    (checksum,) = inputs.values()
    lock = lockfile.read(locks.path_for(SHIPPED)).sections[0]
    changed = lock.model_copy(update={"recipe": name, "inputs": checksum})
    lockfile.write(LockFile(sections=(changed,)), locks.path_for(path))
    return path
