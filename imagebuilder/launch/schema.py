"""Check a document against the schema of its kind, and refuse keys that the schema does not have.

API servers drop unknown keys of custom resources without a word, so a typing mistake would cost a job. Here
every object is closed unless its schema names a type for further keys. Of JSON Schema and of Kubernetes'
structural schemas, this knows the keywords that schemas/ uses.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from imagebuilder.core.yamlfile import nearest, printable

_Path = tuple[str | int, ...]
_Schema = Mapping[str, Any]
# Names of JSON's types in messages.
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
_REMEDIES = {"string": "put it in quotes", "integer": "write digits, without quotes"}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A part of a document that does not fit: where, what is wrong, and what to do."""

    path: _Path
    message: str
    hint: str


@cache
def load(name: str) -> _Schema:
    """Read one of `schemas/`."""
    file = resources.files("imagebuilder.launch").joinpath("schemas", f"{name}.json.gz")
    found: _Schema = json.loads(gzip.decompress(file.read_bytes()))
    return found


def mistakes(document: Any, name: str) -> list[Mistake]:
    """Return everything of a document that does not fit the schema with this name."""
    root = load(name)
    return list(_check(document, root, root, ()))


def _check(value: Any, schema: _Schema, root: _Schema, path: _Path) -> Iterator[Mistake]:
    if "$ref" in schema:
        target: Any = root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[step]
        yield from _check(value, target, root, path)
        return
    if schema.get("x-kubernetes-int-or-string"):
        schema = {**schema, "type": ["integer", "string"], "anyOf": []}
    allowed = schema.get("type", [])
    types = [allowed] if isinstance(allowed, str) else allowed
    if types and not any(_is(value, kind) for kind in types):
        wanted = " or ".join(_WORDS[kind] for kind in types)
        remedy = _REMEDIES.get(types[0], "see the reference of its kind")
        yield Mistake(path=path, message=f"must be {wanted}, not {_named(value)}", hint=remedy)
        return
    yield from _bounds(value, schema, path)
    if isinstance(value, Mapping):
        yield from _mapping(value, schema, root, path)
    elif isinstance(value, (list, tuple)) and "items" in schema:
        for index, item in enumerate(value):
            yield from _check(item, schema["items"], root, (*path, index))
    for part in schema.get("allOf", ()):
        yield from _check(value, part, root, path)
    yield from _alternatives(value, (*schema.get("anyOf", ()), *schema.get("oneOf", ())), root, path)


def _alternatives(value: Any, parts: Sequence[_Schema], root: _Schema, path: _Path) -> Iterator[Mistake]:
    """Report the mistakes of the alternative that fits best: the one whose first mistake is deepest."""
    best: list[Mistake] = []
    for part in parts:
        found = list(_check(value, part, root, path))
        if not found:
            return
        if not best or len(found[0].path) > len(best[0].path):
            best = found
    yield from best


def _mapping(value: Mapping[Any, Any], schema: _Schema, root: _Schema, path: _Path) -> Iterator[Mistake]:
    known = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    further = schema.get("additionalProperties")
    # An object without any keys in its schema is left to whoever reads it.
    is_open = (not known and not patterns and further is None) or further is True
    is_open = is_open or bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for key, item in value.items():
        here = (*path, str(key))
        fitting = [part for pattern, part in patterns.items() if re.search(pattern, str(key))]
        if key in known:
            yield from _check(item, known[key], root, here)
        elif fitting:
            yield from _check(item, fitting[0], root, here)
        elif isinstance(further, Mapping):
            yield from _check(item, further, root, here)
        elif not is_open:
            names = ", ".join(sorted(known)) if known else "none"
            yield Mistake(
                path=here,
                message=f"`{printable(str(key))}` is not a known key",
                hint=nearest(str(key), known) or f"known here: {names}",
            )
    for key in schema.get("required", ()):
        if key not in value:
            yield Mistake(path=path, message=f"`{key}` is missing", hint=f"add `{key}:`")


def _bounds(value: Any, schema: _Schema, path: _Path) -> Iterator[Mistake]:
    def wrong(message: str, hint: str = "see the reference of its kind") -> Mistake:
        return Mistake(path=path, message=message, hint=hint)

    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None and value not in choices:
        words = ", ".join(str(choice) for choice in choices)
        yield wrong(f"`{printable(str(value))}` is not possible here", f"choose {words}")
    if isinstance(value, str):
        pattern = schema.get("pattern")
        if pattern and not re.search(pattern, value):
            yield wrong(
                f"`{printable(value)}` does not have the form that is needed", f"it must match {pattern}"
            )
    lengths: dict[type, tuple[str, Callable[[Any], float]]] = {
        str: ("Length", len),
        list: ("Items", len),
        tuple: ("Items", len),
    }
    word, measure = lengths.get(type(value), ("imum", lambda number: number))
    if isinstance(value, (str, list, tuple, int, float)) and not isinstance(value, bool):
        least, most = schema.get(f"min{word}"), schema.get(f"max{word}")
        if least is not None and measure(value) < least:
            yield wrong(f"must be at least {least}")
        if most is not None and measure(value) > most:
            yield wrong(f"must be at most {most}")


def _is(value: Any, kind: str) -> bool:
    classes: dict[str, tuple[type, ...]] = {
        "object": (Mapping,),
        "array": (list, tuple),
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
    }
    return isinstance(value, classes[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _named(value: Any) -> str:
    return next(words for kind, words in _WORDS.items() if _is(value, kind))
