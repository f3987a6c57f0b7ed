"""Which repository of a registry a blob was last pushed to: from there others can link it without a byte.

    <store>/pushed/<hex>.json   one file a registry, named after the hash of its host; digest -> repository

A cache of hints: what is wrong or lost in it costs an upload, nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from imagebuilder.registry.reference import Reference
from imagebuilder.store import Store, explained

_MOST = 20_000


def known(store: Store, registry: Reference) -> dict[str, str]:
    """Read digest and repository of what was pushed to this registry."""
    try:
        data = json.loads(_path(store, registry).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {digest: path for digest, path in data.items() if isinstance(path, str)}


def remember(store: Store, repository: Reference, digests: Sequence[str]) -> None:
    """Note that these blobs are in this repository now."""
    path = _path(store, repository)
    with store.exclusive(f"pushed {path.name}"), store.work() as folder, explained(path):
        before = known(store, repository)
        # Oldest first, so that the limit forgets what was not pushed for longest.
        kept = {digest: place for digest, place in before.items() if digest not in set(digests)}
        after = {**kept, **dict.fromkeys(digests, repository.path)}
        draft = folder / path.name
        draft.write_text(json.dumps(dict(list(after.items())[-_MOST:]), indent=0))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(path)


def _path(store: Store, registry: Reference) -> Path:
    return store.root / "pushed" / f"{hashlib.sha256(registry.host.encode()).hexdigest()}.json"
