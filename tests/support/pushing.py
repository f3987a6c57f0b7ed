"""A push in one line: most tests of registries begin with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from imagebuilder import registry
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.registry import Client, Destination, PushResult
from imagebuilder.registry.blob import Blob
from imagebuilder.store import ImageRecord, IndexRecord, Store


def push(
    image: ImageRecord | IndexRecord,
    store: Store,
    reference: str,
    tags: Sequence[str] = (),
    *,
    attach: Callable[[Client], object] | None = None,
    bring: Callable[[Blob], None] | None = None,
    advance: Advance = no_advance,
    **how: Any,
) -> PushResult:
    """Push an image; `how` has the other fields of `Destination`."""
    destination = Destination(reference=reference, tags=tuple(tags), **how)
    return registry.push(image, store, destination, attach=attach, bring=bring, advance=advance)
