"""A reader of pickles that calls nothing the pickle names.

A pickle is a program for a small stack machine (PEP 3154; the operations are described in Python's own
pickletools). Python's unpickler looks names up in installed modules and calls what it finds: whoever writes
the file says what runs. Here a name is looked up in a table that is given, what is not in it is refused, and
only the operations that plain data consists of are known.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder.yamlfile import printable

Calls = Mapping[str, Callable[..., object]]
Load = Callable[[Any], object]

_MARK = object()
_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: Mapping[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set}
_OF_MARKED: Mapping[str, Callable[[list[Any]], object]] = {"TUPLE": tuple, "FROZENSET": frozenset}
_OF_ARGUMENT = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_NOTHING = frozenset(("PROTO", "FRAME", "STOP"))


class Refused(Exception):
    """The pickle holds more than data, or is damaged."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Name:
    """A name of the table, as the pickle refers to it: a type, for example."""

    name: str


def run(data: bytes, calls: Calls, names: Collection[str], load: Load) -> object:
    """Read a pickle.

    Args:
        data: the pickle, of protocol 2 to 5.
        calls: what it may call, by dotted name, and what is called instead.
        names: what else it may refer to.
        load: makes of a reference to something outside of the pickle an object.

    Raises:
        Refused: it names something else, has operations that data has no need of, or is damaged.

    """
    machine = _Machine(calls, names, load)
    try:
        for operation, argument, _ in pickletools.genops(data):
            machine.step(operation.name, argument)
        (result,) = machine.stack
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise Refused(f"its object cannot be read, it is damaged: {type(error).__name__}") from None
    return result


class _Machine:
    def __init__(self, calls: Calls, names: Collection[str], load: Load) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, object] = {}
        self._calls = calls
        self._names = names
        self._load = load

    def step(self, operation: str, argument: Any) -> None:
        if operation in _NOTHING:
            return
        if operation in _CONSTANTS:
            self.stack.append(_CONSTANTS[operation])
        elif operation in _EMPTY:
            self.stack.append(_EMPTY[operation]())
        elif operation in _OF_ARGUMENT:
            self.stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif operation in _OF_MARKED:
            self.stack.append(_OF_MARKED[operation](self._marked()))
        else:
            self._step(operation, argument)

    def _step(self, operation: str, argument: Any) -> None:  # noqa: C901, PLR0912 - one case an operation
        stack = self.stack
        match operation:
            case "MARK":
                stack.append(_MARK)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._tuple(int(operation[-1]))
            case "APPEND":
                item = stack.pop()
                self._top(list).append(item)
            case "APPENDS":
                items = self._marked()
                self._top(list).extend(items)
            case "ADDITEMS":
                items = self._marked()
                self._top(set).update(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._top(dict)[key] = value
            case "SETITEMS":
                items = self._marked()
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(self._name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(self._name(module, name))
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append(self._call(called, arguments))
            case "BUILD":
                # Attributes: of an ordered dict, those that torch hangs on it. They are no data.
                stack.pop()
                self._top(dict)
            case "BINPERSID":
                stack.append(self._load(stack.pop()))
            case _:
                raise Refused(f"has the operation {operation}, of which plain data has no need")

    def _name(self, module: str, name: str) -> Name:
        dotted = f"{module}.{name}".replace("__builtin__.", "builtins.")
        if dotted not in self._calls and dotted not in self._names:
            raise Refused(
                f"names `{printable(dotted)}`; only tensors, numbers, texts, lists and dicts are looked at",
                hint="save `model.state_dict()`, not the model, and plain values beside it",
            )
        return Name(name=dotted)

    def _call(self, called: object, arguments: object) -> object:
        if not isinstance(called, Name) or called.name not in self._calls or not isinstance(arguments, tuple):
            raise Refused("calls something that is no function")
        return self._calls[called.name](*arguments)

    def _tuple(self, length: int) -> None:
        if length > len(self.stack) or any(item is _MARK for item in self.stack[-length:]):
            raise Refused("its object cannot be read, it is damaged")
        self.stack[-length:] = [tuple(self.stack[-length:])]

    def _marked(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise Refused("its object cannot be read, it is damaged")
        return self.stack[-1]


def _bytes(data: Any = b"", encoding: Any = "latin-1") -> bytes:
    """Make bytes, which protocol 2 writes as text; never so many as a number says."""
    if isinstance(data, str) and encoding in {"latin1", "latin-1"}:
        return data.encode("latin-1")
    if not isinstance(data, bytes):
        raise Refused("its object cannot be read, it is damaged")
    return data


# What plain data of Python needs to have called, beside what the operations make.
CALLS: Calls = {
    "collections.OrderedDict": dict,
    "collections.Counter": dict,
    "_codecs.encode": _bytes,
    "builtins.set": frozenset,
    "builtins.frozenset": frozenset,
    "builtins.bytearray": _bytes,
    "builtins.complex": complex,
}
