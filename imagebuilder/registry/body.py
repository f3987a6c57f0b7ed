"""The body of a registry's answer, bounded in bytes and in time, whatever the registry sends.

A limit between two pieces, which is all that HTTP libraries have, lets a server hold on to us for ever with
a byte a minute; and an answer that is packed may unpack to a thousand times of what came.
"""

from __future__ import annotations

import time
import zlib

import requests
import urllib3

# What is not asked for as a stream is an acknowledgement, a token or an error in a few words.
SMALL = 1024 * 1024
SECONDS = 300.0
_PIECE = 1 << 16


def read(reply: requests.Response, limit: int, seconds: float = SECONDS) -> bytes:
    """Read at most one byte more than the limit, by which the caller sees that there was too much.

    Args:
        reply: to a request whose body was left unread.
        limit: in bytes, unpacked.
        seconds: all that it may take.

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
    """Read a small body into the reply, where `content` and `json` find it. False when it is too large."""
    data = b""
    try:
        data = read(reply, limit)
    finally:
        # There is no public way to give a response its content.
        reply._content = data[:limit]  # noqa: SLF001
        reply._content_consumed = True  # type: ignore[attr-defined]  # noqa: SLF001
        reply.close()
    return len(data) <= limit
