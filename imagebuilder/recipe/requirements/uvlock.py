"""Read uv.lock: the packages that `uv sync` would install for the project, each at its locked version.

The project itself is not installed, only its dependencies. The format has no specification; this follows
version 1 in uv's source (crates/uv-resolver/src/lock).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.recipe.requirements.demand import (
    WHEEL_FOLDER,
    Found,
    Wrong,
    counts,
    of_python,
    pinned,
    sha256,
)
from imagebuilder.recipe.requirements.project import table
from imagebuilder.recipe.requirements.source import Asked, Text

_VERSION = 1
_MOST_SOURCES = 50
_AGAIN = "run: uv lock"
_EXPORT = "name what `uv export --format pylock.toml -o pylock.toml` writes instead"
_Package = Mapping[str, Any]


def read(file: Text, asked: Asked) -> Iterator[Found]:
    """Follow the project's dependencies as far as they apply to the image."""
    data = file.toml()
    if data.get("version") != _VERSION:
        shown = printable(str(data.get("version")))
        raise Wrong(file.at(1), f"is a uv.lock of version {shown}, and only {_VERSION} is supported", _EXPORT)
    if data.get("conflicts"):
        raise Wrong(
            file.at(file.line_of_key("conflicts")), "has extras or groups that exclude each other", _EXPORT
        )
    python = of_python(data.get("requires-python"), file.at(file.line_of_key("requires-python")))
    yield from [python] if python else []
    yield from _Walk(file, asked, data).demands()


class _Walk:
    def __init__(self, file: Text, asked: Asked, data: Mapping[str, Any]) -> None:
        self._file, self._asked = file, asked
        packages = data.get("package", [])
        if not isinstance(packages, list) or not all(isinstance(item, dict) for item in packages):
            raise Wrong(file.at(1), "`package` is not a list of tables", _AGAIN)
        self._packages: list[_Package] = packages
        self._by_name: dict[tuple[str, object], list[int]] = {}
        for number, package in enumerate(packages):
            name = canonicalize_name(str(package.get("name")))
            for version in (None, str(package.get("version"))):
                self._by_name.setdefault((name, version), []).append(number)
        self._lines = file.lines_of("[[package]]")

    def demands(self) -> Iterator[Found]:
        root = self._root()
        pending = [(root, ""), *((root, f"extra {name}") for name in sorted(self._asked.extras))]
        pending += [(root, f"group {name}") for name in sorted(self._asked.groups)]
        done: set[tuple[int, str]] = set()
        while pending:
            number, part = pending.pop()
            if (number, part) in done:
                continue
            done.add((number, part))
            try:
                if not part and number != root:
                    yield from self._demand(number)
                for dependency in self._dependencies(number, part):
                    pending += self._follow(dependency, number)
            except Wrong as error:
                yield error.problem

    def _root(self) -> int:
        for number, package in enumerate(self._packages):
            source = package.get("source")
            if isinstance(source, dict) and "." in {source.get("virtual"), source.get("editable")}:
                return number
        raise Wrong(self._file.at(1), "does not lock a project in its own folder", _EXPORT)

    def _place(self, number: int) -> str:
        return self._file.at(self._lines[number] if number < len(self._lines) else 1)

    def _demand(self, number: int) -> Iterator[Found]:
        package = self._packages[number]
        source = package.get("source")
        kinds = set(source) if isinstance(source, dict) else set()
        name, place = printable(str(package.get("name"))), self._place(number)
        if kinds & {"virtual", "editable", "directory"}:
            return  # a workspace member is not installed, only its dependencies
        if kinds != {"registry"}:
            listed = printable("/".join(sorted(map(str, kinds)))) or "nowhere"
            raise Wrong(
                place, f"`{name}` comes from {listed}, not from an index",
                f"put its wheel into {WHEEL_FOLDER}, and lock it without that source",
            )  # fmt: skip
        files = [*_tables(package.get("wheels")), *_tables([package.get("sdist")])]
        hashes = {sha256(str(item["hash"]), place) for item in files if "hash" in item}
        yield pinned(str(package.get("name")), str(package.get("version")), place, tuple(hashes))

    def _dependencies(self, number: int, part: str) -> list[Mapping[str, Any]]:
        package = self._packages[number]
        kind, _, name = part.partition(" ")
        if not part:
            return _tables(package.get("dependencies"))
        key = "optional-dependencies" if kind == "extra" else "dev-dependencies"
        listed = {
            canonicalize_name(given): value
            for given, value in table(package.get(key, {}), key, self._file).items()
        }
        normal = canonicalize_name(name)
        # A package may ask for an unknown extra of another one; the recipe may not.
        if normal not in listed and name in (self._asked.extras if kind == "extra" else self._asked.groups):
            known = f"there is {', '.join(sorted(listed))}" if listed else f"it has no {kind}s"
            raise Wrong(
                self._asked.place, f"{self._file.shown} has no {kind} `{printable(name)}`",
                nearest(name, listed) or known,
            )  # fmt: skip
        return _tables(listed.get(normal))

    def _follow(self, dependency: Mapping[str, Any], asker: int) -> list[tuple[int, str]]:
        place = self._place(asker)
        self._asked.look(place)
        marker = dependency.get("marker")
        if marker is not None and not counts(str(marker), place, self._asked.environment):
            return []
        name = canonicalize_name(str(dependency.get("name")))
        version, source = dependency.get("version"), dependency.get("source")
        named = self._by_name.get((name, None if version is None else str(version)), [])
        # uv names the source only where several packages have the name and version.
        fitting = [
            number
            for number in named[:_MOST_SOURCES]
            if source in (None, self._packages[number].get("source"))
        ]
        if len(fitting) != 1:
            message = f"the dependency `{printable(name)}` matches {len(fitting)} packages instead of one"
            raise Wrong(place, message, _AGAIN)
        extras = dependency.get("extra", [])
        listed = extras if isinstance(extras, list) else []
        return [(fitting[0], ""), *((fitting[0], f"extra {extra}") for extra in listed)]


def _tables(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
