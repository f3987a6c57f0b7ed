"""Read the body of a registry's answer with limits on bytes and time.

HTTP libraries limit only the time between two pieces, so a server could keep a connection for ever with
one byte a minute. A compressed answer may also unpack to a thousand times its size.
"""

from __future__ import annotations

import time
import zlib

import requests
import urllib3

# An answer that is not read as a stream is a short acknowledgement, token or error.
SMALL = 1024 * 1024
SECONDS = 300.0
_PIECE = 1 << 16


def read(reply: requests.Response, limit: int, seconds: float = SECONDS) -> bytes:
    """Read at most one byte more than the limit, so that the caller can see that there was too much.

    Args:
        reply: a reply whose body is not read yet.
        limit: in bytes, unpacked.
        seconds: the time limit for the whole body.

    Raises:
        requests.RequestException: the connection broke, or it took too long.

    """
    packed = reply.headers.get("Content-Encoding", "").strip().lower() in {"gzip", "x-gzip"}
    unpacking = zlib.decompressobj(31) if packed else None
    deadline, data = time.monotonic() + seconds, bytearray()
    try:
        while len(data) <= limit:
            piece = reply.raw.read1(_PIECE, decode_content=False)
            if not piece:
                break
            data += unpacking.decompress(piece, limit + 1 - len(data)) if unpacking else piece
            if time.monotonic() > deadline:
                raise requests.ReadTimeout(f"the answer is not complete after {seconds:g} s")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        if isinstance(error, requests.RequestException):
            raise
        raise requests.ConnectionError(error) from error
    except zlib.error as error:
        raise requests.exceptions.ContentDecodingError(error) from error
    return bytes(data[: limit + 1])


def keep(reply: requests.Response, limit: int = SMALL) -> bool:
    """Read a small body into the reply, for its `content` and `json`. Return False if it is too large."""
    data = b""
    try:
        data = read(reply, limit)
    finally:
        # requests has no public way to set the content of a response.
        reply._content = data[:limit]  # noqa: SLF001
        reply._content_consumed = True  # type: ignore[attr-defined]  # noqa: SLF001
        reply.close()
    return len(data) <= limit
