"""JSON that somebody else wrote: read within bounds, or refused with a reason.

The parser of Python takes some twenty bytes of memory for each of the text, and what is made of the values
takes more: so bytes and values are counted before anything is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

# Values of a document; a bill of materials of a thousand packages has thirty thousand.
MOST = 1_000_000


def loads(data: bytes | str, *, limit: int, most: int = MOST, unique: bool = False) -> Any:
    """Read a JSON document.

    Args:
        data: the text.
        limit: bytes that it may have.
        most: values that it may hold, about: commas and brackets in its texts count too.
        unique: refuse objects with two keys that differ in nothing or in case alone. Programs in Go take such
            keys for one, and the last of them counts: they would read another document than we do.

    Raises:
        ValueError: it is none, or too much; the message ends a sentence that begins with its name.

    """
    if len(data) > limit:
        raise ValueError(f"is larger than {limit} bytes")
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if sum(raw.count(sign) for sign in (b",", b"[", b"{")) > most:
        raise ValueError(f"holds more than {most} values")
    try:
        return json.loads(data, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len({key.casefold() for key in made}) != len(pairs):
        raise ValueError("has an object in which a key is given twice")
    return made
