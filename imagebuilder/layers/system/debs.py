"""In which order dpkg installs a set of packages: decided here, so that it is the same on every host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.lock.model import Deb

FIELDS = ("Package", "Version", "Architecture", "Essential", "Provides", "Depends", "Pre-Depends")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")


@dataclass(frozen=True, kw_only=True)
class Package:
    """What a package says of itself; each group of alternatives is fulfilled by any one of its names."""

    name: str
    version: str
    architecture: str
    essential: bool
    provides: tuple[str, ...]
    depends: tuple[tuple[str, ...], ...]
    pre_depends: tuple[tuple[str, ...], ...]


def rounds(packages: Sequence[Package]) -> tuple[tuple[str, ...], ...]:
    """Order packages for dpkg: what one needs before it may even be unpacked is in an earlier round.

    The first round is the essential packages and all that they need. Within a round dpkg finds its way; the
    order there is by name, the same on every host.
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
    """Pick the essential packages, those named as far as they are there, and all that these need."""
    relations = _Relations(packages)
    wanted = set(names)
    return frozenset(relations.closure(p.name for p in packages if p.essential or p.name in wanted))


def problems(packages: Sequence[Package], debs: Iterable[Deb]) -> list[str]:
    """Find packages that are not what the lock says of them.

    Args:
        packages: as their control files have them.
        debs: the same packages as the lock has them, in the same order.

    """
    found = []
    for package, deb in zip(packages, debs, strict=True):
        is_there = (package.name, package.version, package.architecture)
        if is_there != (deb.name, deb.version, deb.architecture):
            shown = printable(" ".join(is_there))
            found.append(f"{deb.path} holds {shown}, not {deb.name} {deb.version} {deb.architecture}")
    return found


def closure_problems(packages: Sequence[Package], asked: Iterable[str]) -> list[str]:
    """Find packages that nothing in a whole system requires, and those that it lacks.

    apt chose what is essential, what was asked for, and what these depend on. Of alternatives all that are
    there count: which of them apt chose, and why, is not known any more.

    Args:
        packages: of a whole system.
        asked: names of packages that were asked for.

    """
    providers: dict[str, set[str]] = {}
    for package in packages:
        for name in (package.name, *package.provides):
            providers.setdefault(name, set()).add(package.name)
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


class _Relations:
    """Which packages of a set need which others of it."""

    def __init__(self, packages: Sequence[Package]) -> None:
        self._packages = {p.name: p for p in sorted(packages, key=lambda package: package.name)}
        self._providers = {name: p.name for p in self._packages.values() for name in p.provides}
        self._providers |= {name: name for name in self._packages}

    def needed(self, names: Iterable[str], *, pre_only: bool) -> set[str]:
        found = set()
        for name in names:
            package = self._packages[name]
            groups = package.pre_depends if pre_only else (*package.pre_depends, *package.depends)
            found |= {
                next((self._providers[n] for n in group if n in self._providers), "") for group in groups
            }
        return found - {""}

    def closure(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        fresh = set(names)
        while fresh:
            found |= fresh
            fresh = self.needed(fresh, pre_only=False) - found
        return found


def parse_package(control: str) -> Package:
    """Read the fields that `dpkg-deb --field` printed.

    Raises:
        BuildError: there is no name among them, or one that no package may have.

    """
    fields = dict(line.split(": ", 1) for line in control.splitlines() if ": " in line)
    name = fields.get("Package", "")
    if not _NAME.fullmatch(name):
        raise BuildError(f"a package has no proper name: `{printable(name)}`", hint="lock again")
    return Package(
        name=name,
        version=fields.get("Version", ""),
        architecture=fields.get("Architecture", ""),
        essential=fields.get("Essential") == "yes",
        provides=tuple(group[0] for group in _groups(fields.get("Provides", "")) if group),
        depends=_groups(fields.get("Depends", "")),
        pre_depends=_groups(fields.get("Pre-Depends", "")),
    )


def _groups(relations: str) -> tuple[tuple[str, ...], ...]:
    """Read `a (>= 1), b:any | c` as names; versions were apt's concern when it solved."""
    return tuple(
        tuple(found[0] for word in group.split("|") if (found := _NAME.match(word.strip())))
        for group in relations.split(",")
        if group.strip()
    )
