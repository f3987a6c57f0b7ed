"""Measure the package's structure: rooms, lines, arrows, and what has grown too large.

    python bin/house.py [--json]

A room is an entry of imagebuilder/ that holds code. An arrow from A to B means that a module of A imports one
of B. A circle is a set of rooms that import each other, directly or through others.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "imagebuilder"
# Files that run inside an image: nothing of the package imports them.
INSIDE = ("smoke/payload/", "plan/files/", "layers/hooks/")
LONG = 60
MANY = 5


@dataclass(frozen=True, kw_only=True)
class House:
    """The figures.

    Attributes:
        entries: what `ls imagebuilder` shows.
        modules: files of Python.
        lines: of each room, and of the package's own `__init__`.
        arrows: pairs of rooms of which the first imports the second.
        circles: rooms that import each other, directly or through others.
        long: functions over 60 lines, as `file:line name lines`.
        many: functions with over five parameters, as `file:line name parameters`.
        shared: names of public classes that stand in several modules, and how many.
        loads: calls of `catalog.load()` in the package.
        late: imports inside of functions.

    """

    entries: int
    modules: int
    lines: Mapping[str, int]
    arrows: tuple[tuple[str, str], ...]
    circles: tuple[tuple[str, ...], ...]
    long: tuple[str, ...]
    many: tuple[str, ...]
    shared: Mapping[str, int]
    loads: int
    late: int


def measure(package: Path = PACKAGE) -> House:
    """Read all modules of the package, and count."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}
    lines: Counter[str] = Counter()
    for path in trees:
        lines[room(path, package)] += path.read_text(encoding="utf-8").count("\n")
    arrows = _arrows(trees, package)
    functions = [(path, node) for path, tree in trees.items() for node in _functions(tree)]
    return House(
        entries=sum(1 for entry in package.iterdir() if entry.name != "__pycache__"),
        modules=len(trees),
        lines=dict(sorted(lines.items())),
        arrows=arrows,
        circles=circles(arrows),
        long=tuple(
            f"{_place(path, node, package)} {size}"
            for path, node in functions
            if (size := _size(node)) > LONG
        ),
        many=tuple(
            f"{_place(path, node, package)} {count}"
            for path, node in functions
            # Typer makes an option of each parameter of a verb.
            if (count := _parameters(node)) > MANY and room(path, package) != "cli"
        ),
        shared=_shared_classes(trees),
        loads=sum(_is_load(node) for tree in trees.values() for node in ast.walk(tree)),
        late=sum(_late(tree) for tree in trees.values()),
    )


def room(path: Path, package: Path = PACKAGE) -> str:
    """Name the room that a file is in: its folder below the package, or its own name."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def circles(arrows: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Find the rooms that reach themselves through others, one group for each circle.

    >>> circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    (('a', 'b', 'c'),)
    """
    ways = defaultdict(set)
    for one, other in arrows:
        ways[one].add(other)

    def reached(start: str) -> frozenset[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for place in ways.get(waiting.pop(), set()) - seen:
                seen.add(place)
                waiting.append(place)
        return frozenset(seen)

    reach = {place: reached(place) for place in list(ways)}
    groups = {
        tuple(sorted(other for other in reach if other in reach[place] and place in reach[other]))
        for place in reach
        if place in reach[place]
    }
    return tuple(sorted(groups))


def _arrows(trees: Mapping[Path, ast.Module], package: Path) -> tuple[tuple[str, str], ...]:
    found = set()
    for path, tree in trees.items():
        if path.relative_to(package).as_posix().startswith(INSIDE):
            continue
        here = room(path, package)
        found |= {(here, there) for there in _imported(tree, package) if there not in {here, "__init__"}}
    return tuple(sorted(found))


def _imported(tree: ast.Module, package: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            words = name.split(".")
            if words[0] == package.name and len(words) > 1:
                place = package / words[1]
                if place.is_dir() or place.with_suffix(".py").exists():
                    yield words[1]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def _place(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef, package: Path) -> str:
    return f"{path.relative_to(package.parent)}:{node.lineno} {node.name}"


def _shared_classes(trees: Mapping[Path, ast.Module]) -> dict[str, int]:
    names = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in sorted(names.items()) if count > 1}


def _is_load(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"catalog", "catalogs"}
    )


def _late(tree: ast.Module) -> int:
    # A function may stand in another one: each import counts once.
    return len(
        {
            inner
            for node in _functions(tree)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        }
    )


def _show(house: House) -> None:
    total = sum(house.lines.values())
    print(f"{total:,} lines in {house.modules} modules, {house.entries} entries in imagebuilder/")
    for name, count in house.lines.items():
        print(f"  {name:12} {count:6,}")
    rooms = len(house.lines.keys() - {"__init__", "__main__"})
    print(f"{len(house.arrows)} arrows between {rooms} rooms, {len(house.circles)} circles")
    for circle in house.circles:
        print(f"  circle: {' '.join(circle)}")
    print(f"{house.loads} calls of catalog.load(), {house.late} imports inside functions")
    for title, rows in (
        (f"functions over {LONG} lines", house.long),
        (f"over {MANY} parameters", house.many),
    ):
        print(f"{len(rows)} {title}")
        print(*(f"  {row}" for row in rows), sep="\n")
    shared = " ".join(f"{name} ({count})" for name, count in house.shared.items())
    print(f"{len(house.shared)} class names in several modules: {shared}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Measure the package's structure.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    house = measure()
    if parser.parse_args().json:
        print(json.dumps(asdict(house), indent=1))
    else:
        _show(house)


if __name__ == "__main__":
    main()
