"""YAML that knows where each value stands: strict loading with `file:line: key.path` for every problem.

Refused besides broken syntax: duplicate keys, aliases (a small file can expand to gigabytes), floats and
other implicit types where a version is meant (`1.10` would read as 1.1), several documents, and files
over a megabyte.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from imagebuilder.errors import InputError, Problem

_LIMIT = 1_000_000
_DEPTH = 32
_Model = TypeVar("_Model", bound=BaseModel)
_Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file: plain data, and the line (from 1) of every key path in it."""

    file: str
    data: Any
    lines: dict[_Path, int] = field(default_factory=dict)

    def where(self, path: Sequence[str | int]) -> str:
        """Name a place as `file:line: key.path`; a path that is not in the file gets its parent's line."""
        known = tuple(path)
        while known and known not in self.lines:
            known = known[:-1]
        dotted = dotted_path(path)
        place = f"{self.file}:{self.lines.get(known, 1)}"
        return f"{place}: {dotted}" if dotted else place


def dotted_path(path: Iterable[str | int]) -> str:
    """Write a key path as people do: `pins.cuda`, `apt[2]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def read(path: Path) -> Document:
    """Load one YAML file.

    Raises:
        InputError: it cannot be read, or is not the strict YAML described above; every problem at once.

    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error
    return parse(raw, str(path))


def parse(raw: bytes, file: str) -> Document:
    """Load YAML from bytes; `file` is the name that messages use."""
    if len(raw) > _LIMIT:
        raise InputError(f"is larger than {_LIMIT} bytes", where=file, hint="is this the right file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 (byte {error.start})", where=file, hint="save it as UTF-8") from error
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = _single_node(loader, file)
            problems: list[Problem] = []
            lines: dict[_Path, int] = {}
            data = _build(node, (), file, lines, problems) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(
            f"is not valid YAML: {error.problem or error.context}",
            where=f"{file}:{line}",
            hint="a value with `:` or `#` in it needs quotes; indent with spaces",
        ) from error
    except yaml.YAMLError as error:
        raise InputError(
            f"is not valid YAML: {printable(str(error).splitlines()[0])}",
            where=file,
            hint="remove control characters",
        ) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=file, hint=f"use {_DEPTH} levels at most") from error
    if problems:
        raise InputError.of(problems)
    return Document(file=file, data=data, lines=lines)


def printable(text: str) -> str:
    """Make text safe to show: a message must not carry terminal escapes from somebody's file."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def validate(document: Document, model: type[_Model], renames: dict[str, str] | None = None) -> _Model:
    """Check a document against a model, and report every problem with its line.

    Args:
        document: what `read` gave.
        model: the pydantic model to make.
        renames: well-meant wrong keys and the right one, for suggestions that spelling alone cannot find.

    Raises:
        InputError: all problems at once.

    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise InputError.of(
            [_explain(item, document, model, renames or {}) for item in error.errors()]
        ) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word most like this one: a sentence, or an empty string."""
    matches = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"perhaps you meant `{matches[0]}`" if matches else ""


def _single_node(loader: yaml.SafeLoader, file: str) -> yaml.Node | None:
    # get_single_node resolves aliases by sharing nodes: look at the events first, so that none gets in.
    if loader.check_event(yaml.StreamStartEvent):
        loader.get_event()
    if loader.check_event(yaml.StreamEndEvent):
        return None
    loader.compose_node = _without_aliases(loader)  # type: ignore[method-assign]
    node: yaml.Node = loader.compose_document()  # type: ignore[assignment]
    if not loader.check_event(yaml.StreamEndEvent):
        mark = loader.peek_event().start_mark
        raise InputError(
            "holds more than one YAML document", where=f"{file}:{mark.line + 1}", hint="split the file"
        )
    return node


def _without_aliases(loader: yaml.SafeLoader) -> Any:
    compose = loader.compose_node
    depth = 0

    def compose_node(parent: yaml.Node | None, index: int) -> yaml.Node | None:
        nonlocal depth
        mark = loader.peek_event().start_mark
        if loader.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not accepted", problem_mark=mark)
        if depth > _DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {_DEPTH} levels", problem_mark=mark)
        depth += 1
        try:
            return compose(parent, index)
        finally:
            depth -= 1

    return compose_node


def _build(node: yaml.Node, path: _Path, file: str, lines: dict[_Path, int], problems: list[Problem]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                problems.append(Problem(message="a key must be a plain word", where=f"{file}:{line}"))
                continue
            key = printable(key_node.value)
            place = (*path, key)
            if key in data:
                problems.append(
                    Problem(
                        message=f"the key `{key}` is given twice (first on line {lines[place]})",
                        where=f"{file}:{line}: {dotted_path(place)}",
                        hint="keep one of the two",
                    )
                )
                continue
            lines[place] = line
            data[key] = _build(value_node, place, file, lines, problems)
        return data
    if isinstance(node, yaml.SequenceNode):
        # Tuples: every value of ours is frozen, and strict models take nothing else.
        return tuple(_build(item, (*path, i), file, lines, problems) for i, item in enumerate(node.value))
    return _scalar(cast("yaml.ScalarNode", node), path, file, problems)  # the only kind left


def _scalar(node: yaml.ScalarNode, path: _Path, file: str, problems: list[Problem]) -> Any:
    match node.tag:
        case "tag:yaml.org,2002:str":
            return node.value
        case "tag:yaml.org,2002:null":
            return None
        case "tag:yaml.org,2002:bool":
            return node.value.lower() in {"true", "yes", "on"}
        case "tag:yaml.org,2002:int" if node.value.isascii() and node.value.isdigit():
            if len(node.value) < 16 and (node.value == "0" or not node.value.startswith("0")):
                return int(node.value)
        case "tag:yaml.org,2002:float" | "tag:yaml.org,2002:timestamp" | "tag:yaml.org,2002:int":
            pass
        case _:
            problems.append(
                Problem(
                    message=f"the tag `{printable(node.tag)}` is not accepted",
                    where=f"{file}:{node.start_mark.line + 1}: {dotted_path(path)}",
                    hint="write plain YAML",
                )
            )
            return None
    problems.append(
        Problem(
            message=f"`{printable(node.value)}` would be read as a number or date",
            where=f"{file}:{node.start_mark.line + 1}: {dotted_path(path)}",
            hint=f'put it in quotes: "{printable(node.value)}"',
        )
    )
    return None


def _explain(item: Any, document: Document, model: type[BaseModel], renames: dict[str, str]) -> Problem:
    path = tuple(step for step in item["loc"] if not str(step).startswith("function-"))
    where = document.where(path)
    match item["type"]:
        case "extra_forbidden":
            key = str(path[-1])
            known = _fields(model, path[:-1])
            hint = f"use `{renames[key]}`" if key in renames else nearest(key, known)
            return Problem(
                message=f"`{printable(key)}` is not a known key",
                where=where,
                hint=hint or f"known here: {', '.join(sorted(known))}",
            )
        case "missing":
            return Problem(message=f"`{path[-1]}` is missing", where=where, hint=f"add `{path[-1]}:`")
        case "string_type" if isinstance(item["input"], int):
            return Problem(
                message="must be text, not a number", where=where, hint=f'put it in quotes: "{item["input"]}"'
            )
        case "string_type" if item["input"] is None:
            return Problem(
                message="must not be empty", where=where, hint="give a value, or leave the key out"
            )
        case "value_error":
            message, _, hint = str(item["ctx"]["error"]).partition("; ")
            return Problem(message=message, where=where, hint=hint)
        case _:
            return Problem(message=str(item["msg"]).lower(), where=where)


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> set[str]:
    """Name the keys known at a path of nested models; free-form mappings know none."""
    here: Any = model
    for step in path:
        info = getattr(here, "model_fields", {}).get(step)
        candidates = [info.annotation, *getattr(info.annotation, "__args__", ())] if info else []
        here = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), here)
    return {info.alias or name for name, info in here.model_fields.items()}
