"""The order in which dpkg installs a set of packages: decided here, so that it is the same on every host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.lock.model import Deb

FIELDS = (
    "Package",
    "Version",
    "Architecture",
    "Essential",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Installed-Size",
)
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_SIZE = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, kw_only=True)
class Package:
    """Fields of a package's control file; any one name of a group of alternatives satisfies the group.

    `unpacked` is the size in bytes that the package states, 0 if it states none; it is only an estimate.
    """

    name: str
    version: str
    architecture: str
    essential: bool
    provides: tuple[str, ...]
    depends: tuple[tuple[str, ...], ...]
    pre_depends: tuple[tuple[str, ...], ...]
    unpacked: int = 0


def rounds(packages: Sequence[Package]) -> tuple[tuple[str, ...], ...]:
    """Order packages into rounds: pre-dependencies, needed to unpack a package, are in an earlier round.

    The first round has the essential packages and their dependencies. Within a round, packages are sorted by
    name, and dpkg decides in which order to configure them.
    """
    relations = _Relations(packages)
    done = relations.closure(package.name for package in packages if package.essential)
    ordered = [tuple(sorted(done))]

    def install(names: set[str]) -> None:
        before = relations.closure(relations.needed(names, pre_only=True)) - done
        if before and before != names:
            install(before)
        rest = names - done
        done.update(rest)
        ordered.append(tuple(sorted(rest)))

    install({package.name for package in packages} - done)
    return tuple(names for names in ordered if names)


def base(packages: Sequence[Package], names: Iterable[str]) -> frozenset[str]:
    """Return the essential packages, those of the names that exist, and the dependencies of both."""
    relations = _Relations(packages)
    wanted = set(names)
    return frozenset(relations.closure(p.name for p in packages if p.essential or p.name in wanted))


def problems(packages: Sequence[Package], debs: Iterable[Deb]) -> list[str]:
    """Return a message for each package that differs from its lock entry.

    Args:
        packages: from the control files.
        debs: the entries of the same packages in the lock, in the same order.

    """
    messages = []
    for package, deb in zip(packages, debs, strict=True):
        actual = (package.name, package.version, package.architecture)
        if actual != (deb.name, deb.version, deb.architecture):
            shown = printable(" ".join(actual))
            messages.append(f"{deb.path} holds {shown}, not {deb.name} {deb.version} {deb.architecture}")
    return messages


def closure_problems(packages: Sequence[Package], asked: Iterable[str]) -> list[str]:
    """Return a message for each package that nothing in a system requires, and for each missing dependency.

    apt chose the essential packages, those that were asked for, and the dependencies of both. If several
    alternatives of a dependency are installed, all count as required: the lock does not say which one apt
    chose.

    Args:
        packages: all packages of a system.
        asked: names of the packages that were asked for.

    """
    providers = _providers(packages)
    by_name = {package.name: package for package in packages}
    reached: set[str] = set()
    fresh = {package.name for package in packages if package.essential}
    fresh |= {name for wanted in asked for name in providers.get(wanted, ())}
    while fresh:
        reached |= fresh
        names = {
            provider
            for name in fresh
            for group in (*by_name[name].pre_depends, *by_name[name].depends)
            for choice in group
            for provider in providers.get(choice, ())
        }
        fresh = names - reached
    lacking = [
        f"lacks {' or '.join(group)}, which {package.name} depends on"
        for package in packages
        for group in (*package.pre_depends, *package.depends)
        if group and not any(name in providers for name in group)
    ]
    extra = [f"nothing in the lock requires {name}" for name in sorted(by_name.keys() - reached)]
    return [*lacking, *extra]


def dependents(
    packages: Sequence[Package], names: frozenset[str], free: frozenset[str]
) -> list[tuple[str, str]]:
    """Return packages that depend on some others, each with one of those; but for those others and `free`."""
    providers = _providers(packages)
    dependent = []
    for package in sorted(packages, key=lambda package: package.name):
        for group in (*package.pre_depends, *package.depends):
            offered = {provider for choice in group for provider in providers.get(choice, ())}
            if offered and offered <= names and package.name not in {*names, *free}:
                dependent.append((package.name, min(offered)))
    return dependent


def _providers(packages: Iterable[Package]) -> dict[str, set[str]]:
    """Return the packages that satisfy a dependency on a name."""
    providers: dict[str, set[str]] = {}
    for package in packages:
        for name in (package.name, *package.provides):
            providers.setdefault(name, set()).add(package.name)
    return providers


class _Relations:
    """The dependencies between the packages of a set."""

    def __init__(self, packages: Sequence[Package]) -> None:
        self._packages = {p.name: p for p in sorted(packages, key=lambda package: package.name)}
        self._providers = {name: p.name for p in self._packages.values() for name in p.provides}
        self._providers |= {name: name for name in self._packages}

    def needed(self, names: Iterable[str], *, pre_only: bool) -> set[str]:
        needed = set()
        for name in names:
            package = self._packages[name]
            groups = package.pre_depends if pre_only else (*package.pre_depends, *package.depends)
            needed |= {
                next((self._providers[n] for n in group if n in self._providers), "") for group in groups
            }
        return needed - {""}

    def closure(self, names: Iterable[str]) -> set[str]:
        closure: set[str] = set()
        fresh = set(names)
        while fresh:
            closure |= fresh
            fresh = self.needed(fresh, pre_only=False) - closure
        return closure


def parse_package(control: str) -> Package:
    """Parse the fields that `dpkg-deb --field` printed.

    Raises:
        BuildError: the package has no name, or an invalid one.

    """
    fields = dict(line.split(": ", 1) for line in control.splitlines() if ": " in line)
    name = fields.get("Package", "")
    if not _NAME.fullmatch(name):
        raise BuildError(f"a package has an invalid name: `{printable(name)}`", hint="lock again")
    return Package(
        name=name,
        version=fields.get("Version", ""),
        architecture=fields.get("Architecture", ""),
        essential=fields.get("Essential") == "yes",
        provides=tuple(group[0] for group in _groups(fields.get("Provides", "")) if group),
        depends=_groups(fields.get("Depends", "")),
        pre_depends=_groups(fields.get("Pre-Depends", "")),
        unpacked=int(size[0]) << 10 if (size := _SIZE.fullmatch(fields.get("Installed-Size", ""))) else 0,
    )


def _groups(relations: str) -> tuple[tuple[str, ...], ...]:
    """Parse `a (>= 1), b:any | c` into names, without versions, which apt checked when it solved."""
    return tuple(
        tuple(match[0] for word in group.split("|") if (match := _NAME.match(word.strip())))
        for group in relations.split(",")
        if group.strip()
    )
