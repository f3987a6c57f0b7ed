"""Write the JSON documents of images, and compute their digests."""

from __future__ import annotations

import hashlib
import json


def dumps(value: object) -> bytes:
    """Write JSON with sorted keys and no blanks: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> str:
    """Return the digest of bytes: `sha256:` and 64 digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
