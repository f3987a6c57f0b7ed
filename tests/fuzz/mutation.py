"""Bad input made out of good; all of it follows from a seed, so that what failed can be made again."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Mutate = Callable[[random.Random, bytes, Sequence[bytes]], bytes]

# What has broken programs before: paths, options, escapes, numbers at the ends, markup, half of an encoding.
TOKENS: tuple[bytes, ...] = (
    b"../../../../tmp/out",
    b"/etc/cron.d/x",
    b"..\\..",
    b"-rf",
    b"--force-all",
    b"$(id)",
    b"`id`",
    b"\0",
    b"\x1b[2J\x1b]0;x\x07",
    b"\r\nX-Injected: yes",
    b"\xc2\x9b31m",
    "\u202e\u2066".encode(),
    "\u00b2\u0661".encode(),
    b"\xff\xfe\x80",
    b"\xed\xa0\x80",
    b"-1",
    b"0x1F",
    b"1e999",
    b"NaN",
    b"9" * 25,
    b"9" * 5000,
    b"18446744073709551616",
    b"[/red][bold",
    b"{{7*7}}",
    b"<script>",
    b"%s%n",
    b"&a [*a,*a]",
    b"<<: {a: b}",
    b"!!python/object/apply:os.system [id]",
    b"{" * 40,
    b"[" * 3000,
    b"http://[",
    b"https://user:word@127.0.0.1:1/",
    b"file:///etc/passwd",
    b"\n---\n",
    b" " * 4000,
    b"a" * 70_000,
    b'"',
    b"'",
    b"\\",
    b",",
    b"#",
    b": ",
)
_TEXTS = tuple(token.decode("utf-8", "replace") for token in TOKENS)
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, -(2**63), 1e308, 0.5, "", "x", [], {}, [[]], {"": {}},
    [None] * 300, {str(number): number for number in range(300)},
)  # fmt: skip


def any_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes, whatever they mean."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(made) + 1)
        length = rng.choice((1, 2, 4, 16, 200))
        match rng.randrange(9):
            case 0:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del made[at : at + length]
            case 2:
                made[at:at] = made[at : at + length] * rng.choice((1, 2, 50))
            case 3 | 4:
                made[at:at] = rng.choice(TOKENS)
            case 5:
                token = rng.choice(TOKENS)
                made[at : at + len(token)] = token
            case 6:
                del made[at:]
            case 7:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                made[at : at + length] = other[start : start + length]
            case _:
                number = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, rng.randrange(1 << 32)))
                made[at : at + 4] = struct.pack("<I", number)
    return bytes(made)


def lines(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change text by lines and words, and now and then by bytes."""
    if rng.random() < 0.3:
        return any_bytes(rng, data, others)
    rows = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(rows))
        head, colon, rest = rows[at].partition(rng.choice((b":", b"=", b" ")))
        match rng.randrange(8):
            case 0:
                del rows[at : at + rng.choice((1, 1, 5))]
            case 1:
                rows[at:at] = [rows[at]] * (rng.choice((1, 2, 3000)) if len(rows[at]) < 100 else 2)
            case 2:
                rows[at] = head + colon + b" " + rng.choice(TOKENS)
            case 3:
                rows[at] = rng.choice(TOKENS) + colon + rest
            case 4:
                rows[at] = b"  " * rng.randrange(40) + rows[at].lstrip()
            case 5:
                rows[at] = rows[at].strip(b"\"' ")
            case 6:
                rows[at] = head + colon + b' "' + rng.choice(TOKENS) + b'"'
            case _:
                rows[at] = rng.choice(rng.choice(others).split(b"\n"))
        rows = rows or [b""]
    return b"\n".join(rows)


def json_document(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change values of a JSON document, and now and then its bytes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return any_bytes(rng, data, others)
    if rng.random() < 0.2:
        return any_bytes(rng, data, others)
    for _ in range(rng.choice((1, 1, 2, 3))):
        document = _changed(rng, document)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.05:
        # A key twice, in another case: which one counts?
        at = text.find('"', rng.randrange(len(text)))
        text = text[:at] + '"LAYERS": [], ' + text[at:] if at > 0 else text
    return text.encode("utf-8", "surrogatepass")


def _changed(rng: random.Random, document: Any) -> Any:
    document = copy.deepcopy(document)
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            spots.append((node, key))
            walk(node[key])

    walk(document)
    if not spots:
        return rng.choice(_VALUES)
    node, key = rng.choice(spots)
    match rng.randrange(7):
        case 0:
            del node[key]
        case 1 | 2:
            node[key] = copy.deepcopy(rng.choice(_VALUES))
        case 3 | 4:
            node[key] = rng.choice(_TEXTS)
        case 5:
            if isinstance(node, dict):
                node[rng.choice(_TEXTS)] = node.pop(key)
            else:
                node.insert(key, copy.deepcopy(node[key]))
        case _:
            other, place = rng.choice(spots)
            try:
                node[key] = copy.deepcopy(other[place])
            except (KeyError, IndexError):  # its own place is gone by now
                node[key] = None
    return document


# What the members of a zip are called that means harm, besides what they should be.
_NAMES = (
    "../out.py", "/etc/passwd", "a\\b", "a/../../b", ".wh.x", "demo//x", "./x", "demo-1.0.data/data/lib64/x",
    "demo-1.0.data/data/bin/python", "demo-1.0.data/scripts/run", "demo-1.0.data/data/pyvenv.cfg",
    "x\x1b[31m",
    "demo-1.0.data/nowhere/x", "a" * 300, "\u202etxt", "demo-1.0.dist-info/entry_points.txt",
    "demo-1.0.dist-info/RECORD", "demo-1.0.dist-info/WHEEL", "other-1.dist-info/METADATA", "lib", "lib/x", "",
)  # fmt: skip
_CONTENTS: tuple[bytes, ...] = (
    b"", b"x" * 100_000, bytes(3_000_000), b"#!python\nprint()\n", b"[console_scripts]\nrun = demo:main\n",
    b"[console_scripts]\nrun = a:b" + b" " * 30_000 + b"x\n", b"[console_scripts]\n../run = a:b\n",
    b"[x\n", b"Wheel-Version: " + b"9" * 5000 + b".0\n", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
    b'"' * 50_000, b"demo/__init__.py,sha256=x,-1\n", b"\xff\xfe",
)  # fmt: skip
_MODES = (0o100644, 0o100755, 0o120777, 0o060644, 0o040755, 0, 0o100000)


def zip_file(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a zip file: its bytes, its directory, or what is in it."""
    if rng.random() < 0.35:
        return any_bytes(rng, data, others)
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            rows = [(info, old.read(info)) for info in old.infolist()]
            for _ in range(rng.choice((1, 1, 2, 3))):
                info = zipfile.ZipInfo(rng.choice(_NAMES) or "x")
                info.external_attr = rng.choice(_MODES) << 16
                info.compress_type = rng.choice((0, 8, 8, 12, 14))
                at = rng.randrange(len(rows) + 1)
                if rng.random() < 0.6 or not rows[at:]:
                    rows.insert(at, (info, rng.choice(_CONTENTS)))
                elif rng.random() < 0.5:
                    del rows[at]
                else:
                    rows[at] = (rows[at][0], rng.choice(_CONTENTS))
            for info, content in rows:
                _quietly(new, info, content)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, EOFError, zlib.error, struct.error):
        return any_bytes(rng, data, others)
    made = out.getvalue()
    return _directory_changed(rng, made) if rng.random() < 0.4 else made


def _quietly(archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        archive.writestr(info, content)


def _directory_changed(rng: random.Random, data: bytes) -> bytes:
    """Set one number of a header: sizes, offsets, flags, methods."""
    made = bytearray(data)
    signs = [at for sign in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for at in _places(data, sign)]
    if signs:
        at = rng.choice(signs) + 4 + 2 * rng.randrange(20)
        width = rng.choice(("<H", "<I", "<Q"))
        top = (1 << 8 * struct.calcsize(width)) - 1
        number = rng.choice((0, 1, 8, 9, 2049, top, top >> 1, rng.randrange(top)))
        made[at : at + struct.calcsize(width)] = struct.pack(width, number)
    return bytes(made)


def _places(data: bytes, sign: bytes) -> list[int]:
    found, at = [], data.find(sign)
    while at >= 0:
        found.append(at)
        at = data.find(sign, at + 1)
    return found


def tar_file(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a tar inside of gzip, or the gzip around it."""
    if rng.random() < 0.2:
        return any_bytes(rng, data, others)
    try:
        plain = bytearray(gzip.decompress(data))
    except (OSError, EOFError, zlib.error):
        return any_bytes(rng, data, others)
    for _ in range(rng.choice((1, 2))):
        at = 512 * rng.randrange(max(len(plain) // 512, 1))
        match rng.randrange(6):
            case 0:
                size = rng.choice(
                    (
                        b"-0000001000\0",
                        b"77777777777\0",
                        b"\x80" + b"\xff" * 11,
                        b"\xff" * 12,
                        b"zzzzzzzzzzz\0",
                    )
                )
                plain[at + 124 : at + 136] = size
            case 1:
                plain[at + 156 : at + 157] = bytes([rng.choice(b"0123456xgLKSV\0")])
            case 2:
                records = rng.choice(
                    (
                        b"20 size=-1048576\n",
                        b"12 size=9e9\n",
                        b"99 path=a\n",
                        b"30 path=../../x\x1b\n",
                        b"x" * 512,
                    )
                )
                header = tarfile.TarInfo("pax")
                header.type, header.size = tarfile.XHDTYPE, len(records)
                plain[at:at] = header.tobuf() + records.ljust(-(-len(records) // 512) * 512, b"\0")
            case 3:
                plain[at : at + 100] = rng.choice(TOKENS)[:100].ljust(100, b"\0")
            case 4:
                del plain[at + rng.randrange(512) :]
            case _:
                plain = bytearray(any_bytes(rng, bytes(plain), others))
        _sum(plain, at)
    return gzip.compress(bytes(plain), 1)


def _sum(plain: bytearray, at: int) -> None:
    """Make a header's checksum right again, that the rest of it gets read."""
    block = plain[at : at + 512]
    if len(block) == 512:
        block[148:156] = b" " * 8
        plain[at + 148 : at + 156] = b"%06o\0 " % sum(block)
