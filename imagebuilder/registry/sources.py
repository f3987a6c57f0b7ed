"""Remember which repository a blob was last pushed to, so that the registry can link it to another one.

    <store>/pushed/<hex>.json   one file a registry, named after the hash of its host; digest -> repository

This is only a cache: a wrong or lost entry costs one upload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from imagebuilder.core.reference import Reference
from imagebuilder.store import Store, explained

_MOST = 20_000


def known(store: Store, registry: Reference) -> dict[str, str]:
    """Return the digest and repository of blobs pushed to this registry."""
    try:
        data = json.loads(_path(store, registry).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {digest: path for digest, path in data.items() if isinstance(path, str)}


def remember(store: Store, repository: Reference, digests: Sequence[str]) -> None:
    """Record that these blobs are in this repository now."""
    path = _path(store, repository)
    with store.exclusive(f"pushed {path.name}"), store.work() as folder, explained(path):
        before = known(store, repository)
        # Oldest first, so that the limit drops the entries that were not pushed for longest.
        kept = {digest: place for digest, place in before.items() if digest not in set(digests)}
        after = {**kept, **dict.fromkeys(digests, repository.path)}
        draft = folder / path.name
        draft.write_text(json.dumps(dict(list(after.items())[-_MOST:]), indent=0))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(path)


def _path(store: Store, registry: Reference) -> Path:
    return store.root / "pushed" / f"{hashlib.sha256(registry.host.encode()).hexdigest()}.json"
