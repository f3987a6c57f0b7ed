"""What tells a secret from something that only looks like it. Each check is named by rules.yaml.

A check gets the secret's bytes and says whether it may be one. All of them err towards yes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_OPENSSH = b"openssh-key-v1\0"
# The tag of a SEQUENCE, with which every ASN.1 structure of a key begins: X.690 section 8.9.
_SEQUENCE = 0x30
_LEAST_KEY = 24
_HEADERS = re.compile(rb"(?:[A-Za-z-]+: [^\n]*\n)+\s*")


def pem(secret: bytes) -> bool:
    """Whether the body of a PEM block is a key: ASN.1 or OpenSSH, or encrypted in the old way of OpenSSL."""
    text = secret.replace(rb"\r", b"").replace(rb"\n", b"\n").replace(b"\r", b"").strip()
    headers = _HEADERS.match(text)
    data = _decoded(re.sub(rb"\s", b"", text[headers.end() :] if headers else text))
    if headers and b"ENCRYPTED" in headers[0]:
        return len(data) >= _LEAST_KEY
    return len(data) >= _LEAST_KEY and (data[0] == _SEQUENCE or data.startswith(_OPENSSH))


def github(secret: bytes) -> bool:
    """Whether the last six characters are the CRC-32 of the thirty before them, in base 62."""
    number, text = zlib.crc32(secret[:30]), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        text = _BASE62[digit] + text
    return secret[30:].decode() == text


def docker(secret: bytes) -> bool:
    """Whether it is base64 of user:password, or an identity token, which is long."""
    user, colon, password = _decoded(secret).partition(b":")
    return bool(user and colon and password and user.isascii()) or len(secret) >= 100


def jwt(secret: bytes) -> bool:
    """Whether the first part is the header of a JSON web token: an object that names its algorithm."""
    head = secret.partition(b".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "alg" in header


def base64_key(secret: bytes) -> bool:
    """Whether it is base64 of a private key in PEM."""
    return b"PRIVATE KEY-----" in _decoded(secret)


def random(_secret: bytes) -> bool:
    """Accept anything: the rule's `bits` decide."""
    return True


CHECKS: Mapping[str, Callable[[bytes], bool]] = {
    check.__name__: check for check in (pem, github, docker, jwt, base64_key, random)
}


def entropy(secret: bytes) -> float:
    """Shannon entropy of the bytes, in bits a byte.

    >>> entropy(b"aaaa"), entropy(b"abcd")
    (0.0, 2.0)
    """
    total = len(secret)
    return sum(-count / total * math.log2(count / total) for count in Counter(secret).values()) + 0.0


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
