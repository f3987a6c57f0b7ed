"""Load YAML strictly, with the line of every value: each problem has its `file:line: key.path`.

Refused besides broken syntax: duplicate and merged keys, tags, aliases (a small file can expand to
gigabytes), floats and other implicit types where a version is meant (`1.10` would read as 1.1), several
documents, and files over 250 kB. If the rest of the file is readable, the document keeps the problem, so that
`validate` reports it together with the model's problems.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import Composer

from imagebuilder.errors import ImagebuilderError, InputError, Problem

_LIMIT = 250_000
_DEPTH = 32
# Keys and values together: a recipe of a thousand packages has a thousand.
_MOST_NODES = 10_000
# Not 010, which YAML 1.1 reads as 8.
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?")
_LONGEST_KEY = 255
_LONGEST = 200  # characters of a value in a message
_MOST_FILES = 1_000  # looked at for a path that was meant
# What recipes and locks are called; `workflow.named` tells them from images.
RECIPE_ENDINGS = (".yaml", ".yml", ".lock")
_SHOWN = 50  # problems reported for one file; a hostile file can hold any number
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_Model = TypeVar("_Model", bound=BaseModel)
_Path = tuple[str | int, ...]
_Loader = Callable[[str], Any]


class KeyProblem(NamedTuple):
    """A problem, the key path that it is about, and its line."""

    path: _Path
    line: int
    problem: Problem


class Invalid(ValueError):
    """Raised by a model's validator about a value: the message, and a separate hint with the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file.

    Attributes:
        file: its name, for messages.
        data: mappings as dict, sequences as tuple, and str, int, bool or None; float only with `numbers`.
        lines: the line (from 1) of every key path.
        problems: problems of the YAML itself, by key path; `validate` raises them together with its own.

    """

    file: str
    data: Any
    lines: Mapping[_Path, int] = field(default_factory=dict)
    problems: tuple[KeyProblem, ...] = ()

    def where(self, path: Sequence[str | int]) -> str:
        """Return a location as `file:line: key.path`; a path not in the file has its parent's line."""
        dotted = dotted_path(path)
        place = f"{self.file}:{self.line(path)}"
        return f"{place}: {dotted}" if dotted else place

    def problem(self, path: Sequence[str | int], message: str, hint: str) -> KeyProblem:
        """Make a problem about a key path."""
        problem = Problem(message=message, where=self.where(path), hint=hint)
        return KeyProblem(path=tuple(path), line=self.line(path), problem=problem)

    def line(self, path: Sequence[str | int]) -> int:
        """Return the line of a key path, or of its nearest parent that is in the file."""
        known = tuple(path)
        while known and known not in self.lines:
            known = known[:-1]
        return self.lines.get(known, 1)


def dotted_path(path: Iterable[str | int]) -> str:
    """Write a key path as people do: `pins.cuda`, `apt[2]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def read(path: Path, *, numbers: bool = False) -> Document:
    """Load one YAML file.

    Args:
        path: the file.
        numbers: accept negative numbers and decimals. A recipe has none, because 2.10 would be read as 2.1.

    Raises:
        InputError: it cannot be read, or is not valid YAML.

    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=printable(str(path)), hint=_path_hint(path)
        ) from error
    return _parse(raw, printable(str(path)), yaml.SafeLoader, numbers=numbers)


def _path_hint(path: Path) -> str:
    """Say which file was most likely meant by a path that cannot be read."""
    name = path.name.removesuffix(path.suffix) if path.suffix in RECIPE_ENDINGS else path.name
    folders = (path, path / "recipes") if path.is_dir() else (path.parent, path.parent / "recipes")
    known = {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))[:_MOST_FILES]}
    if path.is_dir() and known:
        return f"name a recipe's file: {', '.join(printable(str(file)) for file in [*known.values()][:3])}"
    if close := difflib.get_close_matches(name.partition(":")[0], known, n=1):
        return f"perhaps you meant {printable(str(known[close[0]]))}"
    if ":" in name:
        return "this looks like an image's name; name the file of its recipe here"
    return "check the path; a recipe is a file such as recipes/NAME.yaml"


def parse(raw: bytes, file: str) -> Document:
    """Load YAML from bytes; `file` is the name that messages use."""
    return _parse(raw, file, yaml.SafeLoader)


def parse_own(raw: bytes, file: str) -> Document:
    """Load YAML that comes with this package, with libyaml if PyYAML has it, which is several times as fast.

    The documents are the same, but libyaml reports different errors in different words. So `parse` reads a
    file again that libyaml refuses, and reads all files that people write.
    """
    try:
        return _parse(raw, file, _own_loader())
    except InputError:
        return parse(raw, file)


def _parse(raw: bytes, file: str, loader: _Loader, *, numbers: bool = False) -> Document:
    if len(raw) > _LIMIT:
        raise InputError(f"is larger than {_LIMIT} bytes", where=file, hint="is this the right file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8", where=f"{file}:{line}", hint="save it as UTF-8") from error
    try:
        return _Reader(text, file, loader, numbers=numbers).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not valid YAML: {_fault(error)}",
            where=f"{file}:{mark.line + 1 if mark else 1}",
            hint=_hint(error),
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            f"holds the control character U+{ord(text[error.position]):04X}",
            where=f"{file}:{line}",
            hint="remove it",
        ) from error


def printable(text: str) -> str:
    """Make text from a file safe to show: escape control characters, and shorten it."""
    return escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def validate(
    document: Document,
    model: type[_Model],
    hints: Mapping[str, str] | None = None,
    also: Iterable[KeyProblem] = (),
) -> _Model:
    """Check a document against a model.

    Args:
        document: the result of `read`.
        model: the pydantic model to make.
        hints: common wrong keys at the top level, each with its hint, where similar spelling finds none.
        also: problems found by other checks, to be reported together with the model's.

    Raises:
        InputError: all problems at once, in the order of the file, each with its line.

    """
    try:
        made = model.model_validate(document.data)
        items: list[dict[str, Any]] = []
    except ValidationError as error:
        items = [dict(item, loc=_in_file(document, item["loc"])) for item in error.errors()]
    # `port: 1.5` does not need quotes: there the model's message is better. If the model wants text, missing
    # quotes are the whole problem.
    mistyped = {item["loc"] for item in items if item["type"] in _WANTED}
    written = [entry for entry in document.problems if entry.path not in mistyped]
    said = {entry.path for entry in written}
    modelled = [
        document.problem(item["loc"], *_explain(item, model, hints or {}))
        for item in items
        if item["loc"] not in said
    ]
    problems = [*written, *modelled, *also]
    if problems:
        raise _joined(document, problems)
    return made


def _in_file(document: Document, path: _Path) -> _Path:
    """Leave out path steps such as `<so>`, which are not keys but name the chosen alternative of a union."""
    kept: _Path = ()
    for step in path:
        if not (isinstance(step, str) and step.startswith("<") and (*kept, step) not in document.lines):
            kept = (*kept, step)
    return kept


def _joined(document: Document, problems: Iterable[KeyProblem]) -> ImagebuilderError:
    ranked = [entry.problem for entry in sorted(problems, key=lambda entry: entry.line)]
    if len(ranked) > _SHOWN:
        more = f"{len(ranked) - _SHOWN} more problems"
        ranked = [*ranked[:_SHOWN], Problem(message=more, where=document.file, hint="fix these first")]
    return InputError.of(ranked)


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Suggest the most similar known word: a sentence, or an empty string.

    Args:
        word: an unknown word.
        known: words that are right.
        cutoff: how similar the two must be, from 0 to 1, as in `difflib.get_close_matches`.

    """
    matches = difflib.get_close_matches(word, sorted(known), n=1, cutoff=cutoff)
    return f"perhaps you meant `{matches[0]}`" if matches else ""


def escaped(text: str) -> str:
    """Escape control characters and line ends."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _own_loader() -> _Loader:
    """Combine libyaml's events with the composer of `SafeLoader`, whose nodes can be inspected one by one."""
    if not yaml.__with_libyaml__:
        return yaml.SafeLoader

    class Loader(Composer, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    return Loader


def _fault(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong in the words of those who write YAML, not of its parser's tokens."""
    said = str(error.problem or error.context)
    if said.startswith("expected <block end>"):
        return "this line's indentation, or what it begins with, does not fit the lines above it"
    return "a tab stands where a key or a value begins" if "'\\t'" in said else printable(said)


def _hint(error: yaml.MarkedYAMLError) -> str:
    """Return what to do about text that is not YAML: most often a bracket is not closed, or quotes lack."""
    for what, opening, closing in (("flow mapping", "{", "}"), ("flow sequence", "[", "]")):
        if error.context == f"while parsing a {what}" and error.context_mark:
            line = error.context_mark.line + 1
            return f"the `{opening}` in line {line} needs a `{closing}`, and commas between its values"
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "replace the tab by spaces: YAML takes no tab there"
    if problem.startswith("expected <block end>"):
        return "keys that belong together start in the same column; text with odd characters needs quotes"
    if "could not find expected ':'" in problem:
        return "write `key: value`, with a space after the colon"
    return "indent with spaces; a value that holds `: `, `#` or a leading `*`, `&`, `@` needs quotes"


class _Reader:
    """Reads the text of one file into a document."""

    def __init__(self, text: str, file: str, loader: _Loader, *, numbers: bool) -> None:
        self._file = file
        self._numbers = numbers
        self._lines: dict[_Path, int] = {}
        self._problems: list[KeyProblem] = []
        self._depth = 0
        self._nodes = 0
        self._loader = loader(text)
        # PyYAML's composer shares the nodes of aliases, and forgets which tags were written out: look at
        # each event before it does.
        self._compose = self._loader.compose_node
        self._loader.compose_node = self._compose_node

    def document(self) -> Document:
        try:
            node = self._single_node()
            data = self._build(node, ()) if node is not None else {}
        finally:
            self._loader.dispose()
        return Document(file=self._file, data=data, lines=self._lines, problems=tuple(self._problems))

    def _single_node(self) -> yaml.Node | None:
        loader = self._loader
        loader.get_event()  # the stream's start
        if loader.check_event(yaml.StreamEndEvent):
            return None
        node: yaml.Node = loader.compose_document()
        if not loader.check_event(yaml.StreamEndEvent):
            raise self._fatal(self._next(), "holds more than one YAML document", "split the file")
        return node

    def _compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self._next()
        if isinstance(event, yaml.AliasEvent):
            raise self._fatal(event, "aliases (`*name`) are not accepted", "write the value out")
        if self._depth >= _DEPTH:
            raise self._fatal(event, f"is nested deeper than {_DEPTH} levels", "is this the right file?")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._fatal(event, f"the tag `{printable(tag)}` is not accepted", "write plain YAML")
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._fatal(event, f"holds more than {_MOST_NODES} values", "is this the right file?")
        self._depth += 1
        try:
            node: yaml.Node | None = self._compose(parent, index)
            return node
        finally:
            self._depth -= 1

    def _build(self, node: yaml.Node, path: _Path) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            # Tuples, because all our values are frozen, and strict models accept nothing else.
            return tuple(self._build(item, (*path, i)) for i, item in enumerate(node.value))
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: _Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(path, line, "a key must be a plain word", "write each key and its value out")
                continue
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._note(
                    path, line, "merged keys (`<<`) are not accepted", "write each key and its value out"
                )
                continue
            if len(key_node.value) > _LONGEST_KEY:
                shown = printable(key_node.value)
                self._note(path, line, f"`{shown}` is far too long for a key", "is this the right file?")
                continue
            key = escaped(key_node.value)
            place = (*path, key)
            if key in data:
                first = self._lines[place]
                self._note(
                    place, line, f"`{key}` is given twice (first on line {first})", "keep one of the two"
                )
                continue
            self._lines[place] = line
            data[key] = self._build(value_node, place)
        return data

    def _scalar(self, node: yaml.Node, path: _Path) -> str | int | float | bool | None:
        text = str(node.value)
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "null":
                return None
            case "bool":
                return _BOOLEANS[text.lower()]
            case "int" if text.isascii() and text.isdigit() and text == str(int(text[:16])):
                return int(text)
            case "int" | "float" if self._numbers and _DECIMAL.fullmatch(text):
                return float(text) if "." in text else int(text)
            case "int" | "float" | "timestamp":
                shown = printable(text)
                self._note(
                    path,
                    node.start_mark.line + 1,
                    f"`{shown}` would be read as a number or a date",
                    f'put it in quotes: "{shown}"',
                )
        return text

    def _note(self, path: _Path, line: int, message: str, hint: str) -> None:
        dotted = dotted_path(path)
        where = f"{self._file}:{line}" + (f": {dotted}" if dotted else "")
        problem = Problem(message=message, where=where, hint=hint)
        self._problems.append(KeyProblem(path=path, line=line, problem=problem))

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.peek_event()
        return event

    def _fatal(self, event: yaml.Event, message: str, hint: str) -> InputError:
        line = event.start_mark.line + 1 if event.start_mark else 1
        return InputError(message, where=f"{self._file}:{line}", hint=hint)


# What a model requires, by the type of pydantic's error.
_WANTED = {
    "int_type": ("must be a whole number", "write digits, without quotes"),
    "bool_type": ("must be true or false", "write one of the two, without quotes"),
    "dict_type": ("must be a mapping", "write `key: value` lines below it"),
    "model_type": ("must be a mapping", "write `key: value` lines below it"),
    "tuple_type": ("must be a list", "write `- item` lines below it, or [one, two]"),
}


def _explain(item: Any, model: type[BaseModel], hints: Mapping[str, str]) -> tuple[str, str]:
    """Turn one of pydantic's errors into our message and hint."""
    path, value = item["loc"], item["input"]
    match item["type"]:
        case "extra_forbidden":
            key, known = str(path[-1]), _fields(model, path[:-1])
            hint = hints.get(key, "") if len(path) == 1 else ""
            hint = hint or nearest(key, known) or f"known here: {', '.join(sorted(known))}"
            answer = f"`{key}` is not a known key", hint
        case "missing":
            answer = f"`{path[-1]}` is missing", f"add `{path[-1]}:{_example(model, path)}`"
        case _ if value is None:
            answer = "must not be empty", "give a value, or leave the key out"
        case kind if kind in _WANTED:
            message, way = _WANTED[kind]
            answer = message, _as_wanted(kind, value, model, path) or way
        case "string_type":
            answer = _not_text(value)
        case "greater_than_equal":
            answer = f"must be at least {item['ctx']['ge']}", "write a larger number"
        case "less_than_equal":
            answer = f"must be at most {item['ctx']['le']}", "write a smaller number"
        case "value_error" if isinstance(item["ctx"]["error"], Invalid):
            answer = str(item["ctx"]["error"]), item["ctx"]["error"].hint
        case _:
            message = str(item["msg"])
            answer = message[:1].lower() + message[1:], "`imagebuilder schema` describes every key"
    return answer


def _as_wanted(kind: str, value: object, model: type[BaseModel], path: _Path) -> str:
    """Write a value of the wrong kind as the right one, if it is clear what it means; else return ""."""
    way = ""
    match kind, value:
        case "tuple_type", str():
            words = [word.strip(",") for word in _words(value)]
            way = f"write it as a list: {printable(json.dumps(words, ensure_ascii=False))}"
        case "tuple_type", dict():
            way = "it is one item of a list: put `- ` before its first key"
        case "dict_type", tuple() if value and all(isinstance(item, str) and "=" in item for item in value):
            pairs = (item.partition("=") for item in value)
            text = ", ".join(f"{key}: {json.dumps(text, ensure_ascii=False)}" for key, _, text in pairs)
            way = f"write {{{printable(text)}}}"
        case "dict_type", tuple() if value and all(isinstance(item, dict) for item in value):
            way = "leave out the `- ` before each key"
        case "dict_type", str() if ":" in value:
            way = f"put a space after the colon: {printable(value.replace(':', ': ', 1))}"
        case "model_type", _:
            way = f"write keys and their values below it: {', '.join(sorted(_fields(model, path)))}"
    return way


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return [text]


def _example(model: type[BaseModel], path: _Path) -> str:
    """Return an example of a missing key's value, as YAML after the colon; "" where the model has none."""
    info = model.model_fields.get(str(path[-1])) if len(path) == 1 else None
    return f" {json.dumps(info.examples[0])}" if info and info.examples else ""


def _not_text(value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        return "must be text, not true or false", "put it in quotes"
    if isinstance(value, int):
        return "must be text, not a number", f'put it in quotes: "{value}"'
    kind = "a mapping" if isinstance(value, dict) else "a list"
    return f"must be text, not {kind}", "write one word, or a text in quotes"


def _within(annotation: Any) -> list[Any]:
    """List a type and the types that it consists of."""
    return [annotation, *(inner for part in get_args(annotation) for inner in _within(part))]


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> set[str]:
    """Return the keys of the model at a path of nested models."""
    here: Any = model
    for step in path:
        fields = getattr(here, "model_fields", {})
        info = next((info for name, info in fields.items() if step == (info.alias or name)), None)
        candidates = _within(info.annotation) if info else []
        here = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), here)
    return {info.alias or name for name, info in here.model_fields.items()}
