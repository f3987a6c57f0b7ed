"""Read pyproject.toml: `[project]` with its extras (PEP 621), and `[dependency-groups]` (PEP 735)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import Problem
from imagebuilder.recipe.requirements.demand import WHEEL_FOLDER, Found, Wrong, demand, of_python
from imagebuilder.recipe.requirements.source import Asked, Text

_LOCK_INSTEAD = "name the project's uv.lock instead, which already applies it"
_GROUPS = "[dependency-groups]"


def read(file: Text, asked: Asked) -> Iterator[Found]:
    """Read what a project requires, with the extras and groups that the recipe asks for."""
    data = file.toml()
    project = table(data.get("project", {}), "[project]", file)
    if not project and not asked.groups:
        hint = (
            "Poetry can export a requirements.txt: name that"
            if "poetry" in table(data.get("tool", {}), "[tool]", file)
            else "write one, or name groups: {file: ..., groups: [...]}"
        )
        raise Wrong(file.at(1), "has no table [project]", hint)
    yield from _refused(data, file)
    try:
        python = of_python(project.get("requires-python"), file.at(file.line_of_key("requires-python")))
        yield from [python] if python else []
    except Wrong as error:
        yield error.problem
    reader = _Project(file, asked, data, project)
    yield from reader.dependencies()
    for name in sorted(asked.extras):
        yield from reader.of_extra(name, ())
    for name in sorted(asked.groups):
        yield from reader.of_group(name, ())


def table(value: object, name: str, file: Text) -> dict[str, Any]:
    """Return a value that must be a TOML table.

    Raises:
        Wrong: it is not a table.

    """
    if not isinstance(value, dict):
        raise Wrong(file.at(1), f"{name} is not a table", "see the format's specification")
    return value


class _Project:
    def __init__(self, file: Text, asked: Asked, data: Mapping[str, Any], project: Mapping[str, Any]) -> None:
        self._file, self._asked, self._project = file, asked, project
        self._done: set[tuple[str, str]] = set()
        self._name = canonicalize_name(str(project.get("name", "")))
        self._extras = _by_name(project.get("optional-dependencies", {}), "optional-dependencies", file)
        self._groups = _by_name(data.get("dependency-groups", {}), _GROUPS, file)
        sources = table(table(data.get("tool", {}), "[tool]", file).get("uv", {}), "[tool.uv]", file)
        self._sources = {
            canonicalize_name(name): value
            for name, value in table(sources.get("sources", {}), "[tool.uv.sources]", file).items()
        }

    def dependencies(self) -> Iterator[Found]:
        dynamic = self._project.get("dynamic", ())
        keys = {"dependencies", *(["optional-dependencies"] if self._asked.extras else [])}
        for key in sorted(keys & {str(item) for item in dynamic if isinstance(dynamic, list)}):
            yield Problem(
                message=f"`{key}` is dynamic: only the project's build knows it",
                where=self._file.at(self._file.line_of_key("dynamic")),
                hint="name the file that the build reads, such as requirements.txt",
            )
        yield from self._listed(self._project.get("dependencies", []), "dependencies", ())

    def of_extra(self, name: str, above: tuple[str, ...]) -> Iterator[Found]:
        normal = canonicalize_name(name)
        if normal not in self._extras:
            yield self._unknown("extra", name, self._extras)
        elif ("extra", normal) not in self._done:
            self._done.add(("extra", normal))
            yield from self._listed(self._extras[normal], name, (*above, normal))

    def of_group(self, name: str, above: tuple[str, ...]) -> Iterator[Found]:
        normal = canonicalize_name(name)
        if normal in above:
            yield Problem(
                message=f"the group `{printable(name)}` includes itself",
                where=self._file.at(self._file.line_of_key(name, _GROUPS)),
                hint="remove one `include-group`",
            )
        elif normal not in self._groups:
            yield self._unknown("group", name, self._groups)
        elif ("group", normal) not in self._done:
            self._done.add(("group", normal))
            yield from self._listed(self._groups[normal], name, (*above, normal), header=_GROUPS)

    def _listed(
        self, values: object, key: str, above: tuple[str, ...], header: str = "[project"
    ) -> Iterator[Found]:
        line = self._file.line_of_key(key, header)
        if not isinstance(values, list):
            where = self._file.at(line)
            yield Problem(message=f"`{printable(key)}` is not a list", where=where, hint='write ["package"]')
            return
        for value in values:
            if header == _GROUPS and isinstance(value, dict) and list(value) == ["include-group"]:
                yield from self.of_group(str(value["include-group"]), above)
            elif isinstance(value, str):
                yield from self._requirement(value, self._file.at(self._file.line_of(value, line)), above)
            else:
                where = self._file.at(line)
                hint = 'write it as in "mpi4py==4.1.1"'
                yield Problem(
                    message=f"`{printable(str(value))}` is not a requirement", where=where, hint=hint
                )

    def _requirement(self, text: str, place: str, above: tuple[str, ...]) -> Iterator[Found]:
        try:
            self._asked.look(place)
            parsed = demand(text, place, self._asked.environment)
            if parsed is None:
                return
            if (
                self._name and parsed.name == self._name
            ):  # train = ["project[data]"] includes the extra `data`
                for extra in sorted(Requirement(parsed.requirement).extras):
                    yield from self.of_extra(extra, above)
                return
            self._require_index(parsed.name, place)
            yield parsed
        except Wrong as error:
            yield error.problem

    def _require_index(self, name: NormalizedName, place: str) -> None:
        """Refuse what uv would take from a URL or path: an index may have another package of this name."""
        source = self._sources.get(name)
        for item in source if isinstance(source, list) else [source]:
            kinds = set(item) & {"git", "url", "path", "workspace"} if isinstance(item, dict) else set()
            if kinds:
                message = f"`{name}` comes from {'/'.join(sorted(kinds))} by [tool.uv.sources]"
                raise Wrong(place, message, f"put its wheel into {WHEEL_FOLDER}")

    def _unknown(self, kind: str, name: str, known: Mapping[str, object]) -> Problem:
        listed = f"there is {', '.join(sorted(known))}" if known else f"it has no {kind}s"
        message = f"{self._file.shown} has no {kind} `{printable(name)}`"
        return Problem(message=message, where=self._asked.place, hint=nearest(name, known) or listed)


def _refused(data: Mapping[str, Any], file: Text) -> Iterator[Problem]:
    uv = table(table(data.get("tool", {}), "[tool]", file).get("uv", {}), "[tool.uv]", file)
    for key in ("constraint-dependencies", "override-dependencies"):
        if uv.get(key):
            where = file.at(file.line_of_key(key, "[tool.uv"))
            yield Problem(message=f"`{key}` is a setting for uv alone", where=where, hint=_LOCK_INSTEAD)


def _by_name(value: object, name: str, file: Text) -> dict[str, Any]:
    return {canonicalize_name(key): item for key, item in table(value, name, file).items()}
