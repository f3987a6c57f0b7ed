"""Check that a lock has exactly the wheels that its recipe needs, by the wheels' own metadata.

The dependencies of pinned packages are only in their METADATA, which is available when layers are made. The
rest of a lock is compared with its recipe offline, in `agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.errors import LockError, Problem
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.resolve import wheelfile
from imagebuilder.resolve.agreement import OF_PYTHON, counts, environment
from imagebuilder.resolve.request import Request

_HINT = "the lock was changed, or its index changed a file: lock the recipe again"

Requires = Mapping[str, tuple[Requirement, ...] | None]
"""The requirements of each wheel, by its name; None if they cannot be read."""

Tree = Callable[[str], frozenset[str]]
"""Returns the names of a wheel and of everything that it requires."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The requirements on a set of wheels.

    Attributes:
        requirements: the requirements.
        variables: variables for markers.
        components: the component of each wheel that a component requires by name.
        forced: names of wheels whose version the recipe forces, whatever others require.
        compiled: versions of packages that are compiled, by name: no wheel of the lock provides them.

    """

    requirements: tuple[str, ...]
    variables: Mapping[str, str]
    components: Mapping[str, str] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()
    compiled: Mapping[str, str] = field(default_factory=dict)


def of_image(request: Request, lock: Lock) -> Asked:
    """Return the requirements on the wheels of an image."""
    return Asked(
        requirements=(*request.of_wheels, *lock.depends),
        variables=environment(lock.python, lock.architecture),
        components=request.components,
        forced=frozenset(canonicalize_name(pin.package) for pin in request.forced),
        compiled={name: build.version for name, build in lock.compiled.items()},
    )


def of_build(request: Request, lock: Lock, component: str) -> Asked:
    """Return the requirements on the wheels that a component is compiled with."""
    wanted = next((build.wheels for build in request.builds if build.component == component), ())
    components: dict[str, str] = {}
    if component in lock.compiled and (compiled := lock.compiled[component].compiled):
        wanted = compiled.requires
        wheels = (*lock.wheels, *lock.compiled[component].wheels)
        components = {wheel.name: wheel.component for wheel in wheels}
    return Asked(
        requirements=wanted,
        variables=environment(lock.python, lock.architecture),
        components=components,
    )


def of_project(request: Request, lock: Lock) -> Asked:
    """Say what the wheels are for that the user's project is built with."""
    wanted = request.project.requires if request.project else ()
    return Asked(requirements=wanted, variables=environment(lock.python, lock.architecture))


def lacking(wheel: Path, extras: Sequence[str], request: Request, lock: Lock) -> tuple[str, ...]:
    """Name what a project's own wheel requires and the lock does not have.

    Args:
        wheel: its file.
        extras: of it that the image has.
        request: what the recipe asks for.
        lock: with the image's wheels.

    """
    variables = environment(lock.python, lock.architecture)
    versions = {item.name: item.version for item in lock.wheels}
    forced = {canonicalize_name(pin.package) for pin in request.forced}
    found = []
    for requirement in _requires(wheel) or ():
        name = canonicalize_name(requirement.name)
        wanted = any(counts(requirement, variables, extra) for extra in ("", *extras))
        version = versions.get(name)
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        if wanted and not fits and not (version is not None and name in forced):
            found.append(f"{name}{requirement.specifier}")
    return tuple(found)


def read(wheels: Iterable[Wheel], files: Mapping[str, Path]) -> Requires:
    """Read the requirements of wheels whose files are given and readable."""
    return {wheel.name: _requires(files.get(wheel.sha256)) for wheel in wheels}


def require(wheels: Sequence[Wheel], requires: Requires, asked: Asked, where: str) -> None:
    """Refuse wheels that nothing requires, that are missing, or that have the wrong component.

    If the metadata of one wheel is unknown, it might require any other: then extra wheels are not reported.

    Args:
        wheels: the wheels of a lock.
        requires: see `read`.
        asked: the requirements on them.
        where: key path of the list, for messages.

    Raises:
        LockError: every such wheel.

    """
    versions = {wheel.name: wheel.version for wheel in wheels}
    graph = _Graph(versions=versions, requires=requires, asked=asked)
    graph.walk()
    problems = [Problem(message=text, where=where, hint=_HINT) for text in dict.fromkeys(graph.problems)]
    if all(requires.get(name) is not None for name in versions):
        owner = owners(versions, asked.components, graph.tree)
        for number, wheel in enumerate(wheels):
            message = ""
            if wheel.name not in graph.edges:
                message = f"nothing in the lock requires {wheel.name} {wheel.version}"
            elif owner[wheel.name] != wheel.component:
                message = f"{wheel.name} belongs to {owner[wheel.name]}, not to {wheel.component}"
            if message:
                problems.append(Problem(message=message, where=f"{where}[{number}]", hint=_HINT))
    if problems:
        raise LockError.of(problems)


def owners(names: Iterable[str], components: Mapping[str, str], tree: Tree) -> dict[str, str]:
    """Return the component that requires each wheel: of several, the one with the most dependencies.

    So a wheel that torch and cuDNN require is torch's, because torch also requires cuDNN. Other wheels are
    Python's.

    Args:
        names: names of all wheels.
        components: the component of each wheel that a component requires by name.
        tree: returns the names of a wheel and of everything that it requires.

    """
    owner = dict.fromkeys(names, OF_PYTHON)
    trees = {package: tree(package) for package in components}
    for package in sorted(trees, key=lambda name: (len(trees[name]), name)):
        owner.update(dict.fromkeys(trees[package], components[package]))
    # A wheel that a component requires by name is its own, even if others require it too.
    owner.update({name: component for name, component in components.items() if name in owner})
    return owner


@dataclass(kw_only=True)
class _Graph:
    """Which wheels require which others, starting at the requirements."""

    versions: Mapping[str, str]
    requires: Requires
    asked: Asked
    edges: dict[str, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def walk(self) -> None:
        """Follow every requirement that applies, with its extras."""
        done: set[tuple[str, str]] = set()
        fresh = [item for text in self.asked.requirements for item in self._follow("", Requirement(text), "")]
        while fresh:
            name, extra = fresh.pop()
            if (name, extra) not in done:
                done.add((name, extra))
                for requirement in self.requires.get(name) or ():
                    fresh += self._follow(name, requirement, extra)

    def tree(self, root: str) -> frozenset[str]:
        """Return the names of a wheel and of everything that it requires."""
        names = {root} & set(self.edges)
        fresh = set(names)
        while fresh:
            fresh = {name for parent in fresh for name in self.edges[parent]} - names
            names |= fresh
        return frozenset(names)

    def _follow(self, parent: str, requirement: Requirement, extra: str) -> list[tuple[str, str]]:
        name = canonicalize_name(requirement.name)
        if not counts(requirement, self.asked.variables, extra):
            return []
        if name in self.asked.compiled and name not in self.versions:
            if not requirement.specifier.contains(self.asked.compiled[name], prereleases=True):
                self.problems.append(f"compiles {name} {self.asked.compiled[name]}, not `{requirement}`")
            return []
        asker = f"{parent} {self.versions[parent]}" if parent else "the recipe"
        if name not in self.versions:
            self.problems.append(f"lacks {name}, which {asker} requires")
            return []
        version = self.versions[name]
        if name not in self.asked.forced and not requirement.specifier.contains(version, prereleases=True):
            self.problems.append(f"has {name} {version}, and {asker} requires {name}{requirement.specifier}")
        self.edges.setdefault(name, set())
        if parent:
            self.edges[parent].add(name)
        return [(name, ""), *((name, wanted) for wanted in requirement.extras)]


def _requires(path: Path | None) -> tuple[Requirement, ...] | None:
    if path is None:
        return None
    try:
        return tuple(Metadata.from_email(wheelfile.metadata(path), validate=False).requires_dist or ())
    except (*wheelfile.UNREADABLE, ExceptionGroup):
        return None
