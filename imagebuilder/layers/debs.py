"""In which order dpkg installs a set of packages: decided here, so that it is the same on every host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuilder.errors import BuildError
from imagebuilder.yamlfile import printable

FIELDS = ("Package", "Essential", "Provides", "Depends", "Pre-Depends")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")


@dataclass(frozen=True, kw_only=True)
class Package:
    """The relations of one package; each group of alternatives is fulfilled by any one of its names."""

    name: str
    essential: bool
    provides: tuple[str, ...]
    depends: tuple[tuple[str, ...], ...]
    pre_depends: tuple[tuple[str, ...], ...]


def rounds(packages: Sequence[Package]) -> tuple[tuple[str, ...], ...]:
    """Order packages for dpkg: what one needs before it may even be unpacked is in an earlier round.

    The first round is the essential packages and all that they need. Within a round dpkg finds its way; the
    order there is by name, the same on every host.
    """
    by_name = {package.name: package for package in sorted(packages, key=lambda package: package.name)}
    providers = {name: package.name for package in by_name.values() for name in package.provides}
    providers |= {name: name for name in by_name}

    def needed(names: Iterable[str], *, pre_only: bool) -> set[str]:
        found = set()
        for name in names:
            package = by_name[name]
            groups = package.pre_depends if pre_only else (*package.pre_depends, *package.depends)
            found |= {next((providers[n] for n in group if n in providers), "") for group in groups}
        return found - {""}

    def closure(names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        fresh = set(names)
        while fresh:
            found |= fresh
            fresh = needed(fresh, pre_only=False) - found
        return found

    done = closure(package.name for package in packages if package.essential)
    ordered = [tuple(sorted(done))]

    def install(names: set[str]) -> None:
        before = closure(needed(names, pre_only=True)) - done
        if before and before != names:
            install(before)
        rest = names - done
        done.update(rest)
        ordered.append(tuple(sorted(rest)))

    install(set(by_name) - done)
    return tuple(names for names in ordered if names)


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
