"""Programs of ours that run where a layer is made: the files of a folder beside this module."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from imagebuilder.store import explained


def hand_in(name: str, folder: Path) -> None:
    """Copy the files of a folder of this package; pip compiles modules into a folder there, which stays.

    Args:
        name: of the folder, as in `system_hooks`.
        folder: where to; it is there already.

    Raises:
        StoreError: the store is full or not writable.

    """
    for hook in resources.files("imagebuilder.layers").joinpath(name).iterdir():
        if hook.is_file():
            with explained(folder):
                (folder / hook.name).write_bytes(hook.read_bytes())
