"""Read JSON from untrusted sources: within limits, or refuse it with a reason. Also what is written as JSON.

Python's parser needs about twenty bytes of memory for each byte of text, and the values need more. So bytes
and values are counted before the text is parsed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

# Limit of values in a document; a bill of materials of a thousand packages has thirty thousand.
MOST = 1_000_000


def loads(data: bytes | str, *, limit: int, most: int = MOST, unique: bool = False) -> Any:
    """Read a JSON document.

    Args:
        data: the text.
        limit: the largest size in bytes.
        most: the largest number of values, roughly: commas and brackets inside strings count too.
        unique: refuse objects with two keys that are equal apart from case. Programs in Go treat such keys as
            one and use the last, so they would read another document than we do.

    Raises:
        ValueError: the text is not JSON, or too large; the message completes a sentence that begins with the
            document's name.

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


def plain(value: Any) -> Any:
    """Return a value with dataclasses, models and paths as JSON holds them.

    NaN and infinity become null; half a surrogate pair, which UTF-8 cannot hold, becomes `?`.
    """
    if isinstance(value, PurePath):
        value = str(value)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len({key.casefold() for key in made}) != len(pairs):
        raise ValueError("has an object in which a key is given twice")
    return made
