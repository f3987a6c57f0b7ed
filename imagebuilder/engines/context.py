"""The input that every step of a build shares, and the step that makes a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.core.progress import Progress
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Lock
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    OsLayer,
    OsPart,
    PackageLayer,
    WheelLayer,
)
from imagebuilder.store import Store

if TYPE_CHECKING:
    from imagebuilder.registry.cache import Cache
    from imagebuilder.resolve.request import Request

Step = (
    ImportedLayer | OsLayer | BuiltLayer | WheelLayer | BytecodeLayer | FilesLayer | PackageLayer | KeysLayer
)
"""What one step makes: a layer, or a system with all its parts."""
Scheduled = Step | OsPart
"""Every layer but those of the user's own files, which need neither a download nor a program."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What every step of a build needs.

    Attributes:
        lock: says which bytes.
        store: keeps them.
        site: says where to fetch them.
        progress: shows the steps.
        request: reads what the recipe asks for; the wheels of the lock are held to it.
        recipe_folder: where the folders that the recipe copies are relative to.
        cache: has layers and packages of other builds, or None.
        remake: make every layer that the store lacks, even if the cache has it.
        whole: fetch the layers that only the cache has, because the image is about to be read.

    """

    lock: Lock
    store: Store
    site: Site
    progress: Progress
    request: Callable[[], Request] | None = None
    recipe_folder: Path = Path()
    cache: Cache | None = None
    remake: bool = False
    whole: bool = False


def step_of(layer: Scheduled) -> Step:
    """Return what has to be made for a layer: for a part of a system it is the whole system, made once."""
    return layer.system if isinstance(layer, OsPart) else layer
