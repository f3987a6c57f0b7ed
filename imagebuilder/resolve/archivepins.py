"""Pins whose Debian packages are in an archive of their own, such as NVIDIA's: which versions fulfil them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from imagebuilder import catalog
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import Problem
from imagebuilder.lock.model import Deb, Installed
from imagebuilder.resolve.debpins import Index
from imagebuilder.resolve.request import ArchivePin, Request


def pins(request: Request) -> tuple[ArchivePin, ...]:
    """List these pins."""
    return tuple(pinned for pinned in request.deb_pins if isinstance(pinned, ArchivePin))


def refined(request: Request, locked: Mapping[str, str]) -> Request:
    """Fix the pins of what is loaded from wheels to the versions of these wheels: both must be the same.

    Args:
        request: whose pins.
        locked: normalised name and version of every wheel.

    """
    exact = {
        mirrored.wheel.pin: locked[name]
        for mirrored in request.mirrored
        if (name := canonicalize_name(mirrored.wheel.package)) in locked
    }
    return replace(
        request,
        deb_pins=tuple(
            replace(pinned, value=exact[pinned.pin])
            if isinstance(pinned, ArchivePin) and pinned.pin in exact
            else pinned
            for pinned in request.deb_pins
        ),
    )


def choose(request: Request, index: Index, installed: Mapping[str, str]) -> dict[str, str]:
    """Choose package and version for each pin: what the base has already, else the newest that fits."""
    chosen = {}
    for pinned in pins(request):
        here = installed.get(pinned.package, "")
        fitting = [version for version in index.get(pinned.package, ()) if _fits(pinned, version)]
        if here and _fits(pinned, here):
            chosen[pinned.package] = here
        elif fitting:
            chosen[pinned.package] = debversion.newest(fitting)
    return chosen


def are_met(request: Request, packages: Sequence[Deb | Installed]) -> bool:
    """Tell whether packages fulfil all these pins."""
    versions = {package.name: package.version for package in packages}
    return all(
        pinned.package in versions and _fits(pinned, versions[pinned.package]) for pinned in pins(request)
    )


def problems(
    request: Request, index: Index, installed: Mapping[str, str], archives: Collection[str]
) -> list[Problem]:
    """Explain pins that no package fulfils, with the values that would."""
    found = []
    chosen = choose(request, index, installed)
    for pinned in pins(request):
        if pinned.package in chosen:
            continue
        where = request.places.of("pins", pinned.pin)
        wheel = f"or take it from wheels: `providers: {{{pinned.pin}: wheel}}`"
        if pinned.archive not in archives:
            found.append(
                Problem(
                    message=f'{pinned.pin} "{pinned.value}" is to come from the archive {pinned.archive}, '
                    "which the base is not set up for",
                    where=where,
                    hint=f"choose a base that is, {wheel}; "
                    f"or name its place and key in the site file: `apt: archives: {pinned.archive}:`",
                )
            )
            continue
        offered = index.get(pinned.package, ())
        values = _values(pinned, offered)
        built = f" built for {pinned.ending.lstrip('+')}" if pinned.ending else ""
        has = f"whose {pinned.package}{built} is {' or '.join(values)}" if values else "which has none"
        found.append(
            Problem(
                message=f'{pinned.pin} "{pinned.value}" contradicts the archive {pinned.archive}, '
                + (has if offered else f"which has no {pinned.package}"),
                where=where,
                hint=f'set {pinned.pin}: "{values[-1]}", {wheel}' if values else f"choose another, {wheel}",
            )
        )
    return found


def _values(pinned: ArchivePin, offered: Sequence[str]) -> list[str]:
    """List what the archive has for this pin, the newest last: at most the last five."""
    fitting = {version for version in offered if version.endswith(pinned.ending)}
    ordered: list[str] = []
    while fitting:
        fitting -= {last := debversion.newest(fitting)}
        ordered.append(debversion.upstream(last))
    return list(dict.fromkeys(ordered))[:5][::-1]


def _fits(pinned: ArchivePin, version: str) -> bool:
    # A wheel's version may be finer than the pin, or than the package's: 9.10.2.21 beside 9.10.2.21-1.
    return catalog.matches(debversion.upstream(version), pinned.value) and version.endswith(pinned.ending)
