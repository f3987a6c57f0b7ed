"""Whether the wheels of a lock are those that its recipe needs, by the wheels' own metadata.

Offline a lock can be compared with its recipe as far as the recipe says something. What the pinned packages
bring in, only their METADATA says, which is at hand when layers are made.
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
"""What the wheel of each name requires; None where that cannot be read."""

Tree = Callable[[str], frozenset[str]]
"""Names a wheel and all that it brings in."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a set of wheels is for.

    Attributes:
        requirements: that it has to fulfil.
        components: of wheels that one asks for by name.
        forced: names of wheels whose version the recipe forces, whatever others require.
        variables: of markers.

    """

    requirements: tuple[str, ...]
    variables: Mapping[str, str]
    components: Mapping[str, str] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()


def of_image(request: Request, lock: Lock) -> Asked:
    """Say what the wheels of an image are for."""
    return Asked(
        requirements=request.of_wheels,
        variables=environment(lock.python, lock.architecture),
        components=request.components,
        forced=frozenset(canonicalize_name(pin.package) for pin in request.forced),
    )


def of_build(request: Request, lock: Lock, component: str) -> Asked:
    """Say what the wheels are for that are there while a component is compiled."""
    wanted = next((build.wheels for build in request.builds if build.component == component), ())
    return Asked(requirements=wanted, variables=environment(lock.python, lock.architecture))


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
    """Read what wheels require, as far as their files are at hand and can be read."""
    return {wheel.name: _requires(files.get(wheel.sha256)) for wheel in wheels}


def require(wheels: Sequence[Wheel], requires: Requires, asked: Asked, where: str) -> None:
    """Refuse wheels that nothing requires, that are missing, or that are filed under another component.

    Where the metadata of one wheel is not known, it might require any other: then none is one too many.

    Args:
        wheels: of a lock.
        requires: see `read`.
        asked: what they are for.
        where: key path of the list, for messages.

    Raises:
        LockError: names every such wheel.

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
    """Give each wheel to the component that brings it in: of several, to the one that brings in most.

    So what torch shares with cuDNN, which torch brings in too, is torch's. The rest is Python's.

    Args:
        names: of all wheels.
        components: of those that one asks for by name.
        tree: names a wheel and all that it brings in.

    """
    found = dict.fromkeys(names, OF_PYTHON)
    trees = {package: tree(package) for package in components}
    for package in sorted(trees, key=lambda name: (len(trees[name]), name)):
        found.update(dict.fromkeys(trees[package], components[package]))
    # What a component asks for by name is its own, whoever else wants it too.
    found.update({name: component for name, component in components.items() if name in found})
    return found


@dataclass(kw_only=True)
class _Graph:
    """Which wheels require which others, walked from what is asked for."""

    versions: Mapping[str, str]
    requires: Requires
    asked: Asked
    edges: dict[str, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def walk(self) -> None:
        """Follow every requirement that counts, with the extras that are asked for."""
        done: set[tuple[str, str]] = set()
        fresh = [item for text in self.asked.requirements for item in self._follow("", Requirement(text), "")]
        while fresh:
            name, extra = fresh.pop()
            if (name, extra) not in done:
                done.add((name, extra))
                for requirement in self.requires.get(name) or ():
                    fresh += self._follow(name, requirement, extra)

    def tree(self, root: str) -> frozenset[str]:
        """Name a wheel and all that it brings in."""
        found = {root} & set(self.edges)
        fresh = set(found)
        while fresh:
            fresh = {name for parent in fresh for name in self.edges[parent]} - found
            found |= fresh
        return frozenset(found)

    def _follow(self, parent: str, requirement: Requirement, extra: str) -> list[tuple[str, str]]:
        name = canonicalize_name(requirement.name)
        if not counts(requirement, self.asked.variables, extra):
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
