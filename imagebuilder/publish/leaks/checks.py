"""Distinguish secrets from data that only looks like one. rules.yaml names these checks.

A check gets the bytes and returns whether they may be a secret. If in doubt, it returns True.
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
# RFC 7519 section 4.1, and what OpenID Connect and OAuth add most often.
_CLAIMS = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "scope", "azp", "email", "role"})
_LEAST_KEY = 24
# The first line of a key has this many characters of base64.
_LONGEST_HEAD = 128
# Encryption by a password, 1.2.840.113549.1.5 (PKCS#5) and .12.1 (PKCS#12): RFC 8018 and RFC 7292.
_PKCS5 = (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05", b"\x06\x0a\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x01")
# RSA, Elgamal, DSA, ECDH, ECDSA, EdDSA, X25519, X448, Ed25519, Ed448: RFC 9580 section 9.1.
_OPENPGP_KEYS = frozenset({1, 2, 3, 16, 17, 18, 19, 22, 25, 26, 27, 28})
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
    """Whether it is a JSON web token: a header with an algorithm, and claims that are registered."""
    head, claims = (_object(part) for part in secret.split(b".")[:2])
    # The token in every tutorial is for the user 1234567890.
    return "alg" in head and bool(_CLAIMS & claims.keys()) and claims.get("sub") != "1234567890"


def _object(part: bytes) -> dict[str, object]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def base64_key(secret: bytes) -> bool:
    """Whether it is base64 of a private key in PEM."""
    return b"PRIVATE KEY" in _decoded(re.sub(rb"\s", b"", secret)[:_LONGEST_HEAD])


def der(secret: bytes) -> bool:
    """Whether it is one SEQUENCE in DER that begins as private keys do, from its first byte to its last."""
    start = _content(secret, 0)
    if start is None or start[1] != len(secret):
        return False
    inside = secret[start[0] :]
    # PKCS#8 and PKCS#1 begin with version 0 (1 with a public key), and then the algorithm's identifier or the
    # modulus; SEC 1 with version 1 and the key; an encrypted PKCS#8 with the identifier of its encryption.
    if inside[:3] in (b"\x02\x01\x00", b"\x02\x01\x01") and len(inside) > 4:
        if inside[3] == 0x02 and inside[:3] == b"\x02\x01\x00":
            return _integers(inside) >= 6
        return (inside[3] == _SEQUENCE and inside[5] == 0x06) or (inside[3] == 0x04 and inside[2] == 1)
    identifier = _content(inside, 0)
    return identifier is not None and inside[identifier[0] :].startswith(_PKCS5)


def openpgp(secret: bytes) -> bool:
    """Whether the first packet is a secret key with a length that fits the data."""
    if secret[0] & 0x40:
        first = secret[1]
        if first < 192:
            length, body = first, secret[2:]
        elif first < 224:
            length, body = ((first - 192) << 8) + secret[2] + 192, secret[3:]
        else:
            length, body = int.from_bytes(secret[2:6]), secret[6:]
    else:
        size = 1 << (secret[0] & 3)
        length, body = int.from_bytes(secret[1 : 1 + size]), secret[1 + size :]
    # Created between 1991, when PGP was, and 2106.
    return (
        40 <= length <= len(body)
        and body[0] in range(3, 7)
        and int.from_bytes(body[1:5]) > 662_688_000
        and body[7 if body[0] == 3 else 5] in _OPENPGP_KEYS
    )


def key_store(secret: bytes) -> bool:
    """Whether a key store may have a private key: Java's says so at its start, PKCS#12 does not."""
    if not secret.startswith(b"\xfe\xed\xfe\xed"):
        return True
    # The store of public CAs that comes with Java has only entries of kind 2.
    return int.from_bytes(secret[8:12]) > 0 and int.from_bytes(secret[12:16]) == 1


def _content(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the content of the ASN.1 value at a place begins and ends; None where it is not one."""
    if len(data) < at + 2:
        return None
    size, start = data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(data[start : start + count]), start + count
        if not 1 <= count <= 4:
            return None
    return start, start + size


def _integers(data: bytes) -> int:
    """Count the INTEGERs in a row, as PKCS#1 has nine and a DSA key six."""
    at = count = 0
    while at < len(data) and data[at] == 0x02 and (inside := _content(data, at)) and count < 16:
        at, count = inside[1], count + 1
    return count if at == len(data) else 0


def random(_secret: bytes) -> bool:
    """Accept anything: the rule's `bits` decide."""
    return True


CHECKS: Mapping[str, Callable[[bytes], bool]] = {
    check.__name__: check for check in (pem, der, openpgp, key_store, github, docker, jwt, base64_key, random)
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
