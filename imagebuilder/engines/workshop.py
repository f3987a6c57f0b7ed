"""What the steps of a build need, and which step makes a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagebuilder.lock import KnownLayer, Lock
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    Layer,
    OsLayer,
    OsPart,
    WheelLayer,
)
from imagebuilder.progress import Advance, Progress
from imagebuilder.site import Site
from imagebuilder.store import LayerRecord, Store

Step = ImportedLayer | OsLayer | BuiltLayer | WheelLayer | BytecodeLayer | FilesLayer | KeysLayer
"""What is made at once: a layer, or a system with all its parts."""


class MakeSystem(Protocol):
    """Makes the OS layer of its packages, in the place of `build_os_layer`.

    The layer's own key names the record, so a maker that gives other bytes has a class of layer of its own
    (`plan.DockerOsLayer`). It is called in the thread that called `build`, where Ctrl-C arrives.
    """

    def __call__(
        self, layer: OsLayer, debs: Mapping[str, Path], store: Store, advance: Advance, /
    ) -> LayerRecord:
        """Make it; `debs` are the packages' files by hex sha256, `advance` is told bytes of the tar."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What every step of a build needs.

    Attributes:
        lock: says which bytes.
        store: where they are kept.
        site: where they are had.
        progress: whom to tell.
        make_system: makes the OS layer where that is another engine; the rest is the same.
        trusting: False takes no diffID from the lock: every one is computed.

    """

    lock: Lock
    store: Store
    site: Site
    progress: Progress
    make_system: MakeSystem | None = None
    trusting: bool = True

    def known(self, key: str) -> KnownLayer | None:
        """Look up what the lock says a layer gives; None where it does not say, or is not to be believed."""
        return next((layer for layer in self.lock.layers if self.trusting and layer.key == key), None)


def step_of(layer: Layer) -> Step:
    """Name what has to be made for a layer: for a part of a system it is the system, once for all parts."""
    return layer.system if isinstance(layer, OsPart) else layer
