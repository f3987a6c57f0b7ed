"""Decode text: UTF-16, base64, and the values of Kubernetes Secrets."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

# Files in which people keep base64 by hand.
_ENCODED = re.compile(
    r"^\(|(?:^|/)(?:\.?env[^/]*"
    r"|[^/]+\.(?:ya?ml|json|env|conf|cfg|ini|toml|sh|service|properties|tfstate|tfvars|xml|b64|base64))$"
)
# Files in which they may, if short. Code is left out: there is too much of it.
_NOTES = re.compile(r"(?:^|/)(?:[^./]+|[^/]+\.(?:txt|md|log|ipynb|crt|pem|key))$")
_SHORT = 1 << 15
_RUN = re.compile(
    rb"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/]{32,}(?:\r?\n[ \t]{0,16}[A-Za-z0-9+/]{40,})*"
    rb"={0,2}(?![A-Za-z0-9+/=])"
)
_SAMPLE = 96
_HEAD = 32
_UNPRINTABLE = bytes(byte for byte in range(256) if not (32 <= byte < 127 or byte in b"\t\r\n"))
_SECRET = re.compile(rb"""kind["']?\s{0,4}:\s{0,4}["']?Secret\b""")
_DATA = re.compile(rb"""(?m)^(?P<indent>[ \t]{0,16})["']?(?P<key>data|stringData)["']?:[ \t]{0,4}(?:\{|$)""")
_FIELD = re.compile(
    rb"""["']?(?P<name>[A-Za-z0-9._-]{1,253})["']?[ \t]{0,4}:[ \t]{0,4}"""
    rb"""["']?(?P<value>[^\s"',{}|>]{4,65536})"""
)
_JSON_DATA = re.compile(rb'"(?P<key>data|stringData)"\s{0,8}:\s{0,8}\{(?P<body>[^{}]{1,65536})\}')


def utf16(data: bytes) -> bytes:
    """Convert UTF-16, recognised by its byte order mark or first bytes, to UTF-8; b"" for other data."""
    head = data[:16]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    elif len(head) == 16 and not any(head[1::2]) and head[::2].isascii() and all(head[::2]):
        encoding = "utf-16-le"
    elif len(head) == 16 and not any(head[::2]) and head[1::2].isascii() and all(head[1::2]):
        encoding = "utf-16-be"
    else:
        return b""
    text = data.decode(encoding, "ignore")
    return text.encode("utf-8", "ignore") if text[:_SAMPLE].isprintable() or "\n" in text[:1024] else b""


def runs(data: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """Find base64 of text in files where people write it: the position and the text."""
    chosen = _ENCODED.search(name) or (len(data) <= _SHORT and _NOTES.search(name))
    if not chosen or b"\0" in data[:_SAMPLE]:
        return
    for found in _RUN.finditer(data):
        if _is_text(decode(found[0][:_HEAD])):
            yield found.start(), decode(re.sub(rb"\s", b"", found[0]))


def kubernetes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Find the values of Secrets in a manifest: the position and the decoded value."""
    if b"Secret" not in data or b"\0" in data[:_SAMPLE]:
        return
    for start, end in _documents(data):
        if not _SECRET.search(data, start, end):
            continue
        for block in _DATA.finditer(data, start, end):
            indent = len(block["indent"])
            at = block.end() + 1
            for line in data[at:end].split(b"\n"):
                if line.strip() and len(line) - len(line.lstrip()) <= indent:
                    break
                yield from _values(line, block["key"], at)
                at += len(line) + 1
        for block in _JSON_DATA.finditer(data, start, end):
            yield from _values(block["body"], block["key"], block.start("body"))


def decode(text: bytes) -> bytes:
    """Decode base64; b"" for other data."""
    text = re.sub(rb"\s", b"", text).rstrip(b"=")
    try:
        return base64.b64decode(
            text[: len(text) - (len(text) % 4 == 1)] + b"=" * (-len(text) % 4), validate=True
        )
    except (binascii.Error, ValueError):
        return b""


def _documents(data: bytes) -> Iterator[tuple[int, int]]:
    """Cut YAML into its documents."""
    at = 0
    for found in re.finditer(rb"(?m)^---", data):
        yield at, found.start()
        at = found.end()
    yield at, len(data)


def _values(text: bytes, key: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    for field in _FIELD.finditer(text):
        value = field["value"] if key == b"stringData" else decode(field["value"])
        if value and _is_text(value[:_SAMPLE]):
            yield at + field.start("value"), value


def _is_text(data: bytes) -> bool:
    return bool(data) and len(data.translate(None, _UNPRINTABLE)) == len(data)
